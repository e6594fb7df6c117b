/* arguments_fuzz.c: any bytes as arguments of a run. With clang -fsanitize=fuzzer, or with
 * fuzz_main.c under any compiler.
 *
 * The bytes become rank, dtype, shape, strides, device, address and offset of each tensor, arena
 * and params image, as edits of a workload that is right. Whatever comes: no access out of bounds
 * (the sanitizers see to that), nothing written on an error, and a detail that can be printed. When
 * the run is accepted, its result is right.
 */
#include <stdlib.h>

#include "test_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int good) {
    if (!good)
        abort();
}

typedef struct bytes {
    const uint8_t *at;
    size_t left;
} bytes;

static uint8_t next(bytes *from) {
    if (from->left == 0)
        return 0;
    from->left--;
    return *from->at++;
}

static int64_t next_number(bytes *from) {
    static const int64_t special[] = {0,         1,         2,         8,         16,        64,
                                      INT32_MAX, INT64_MAX, INT64_MIN, 1LL << 32, 1LL << 62, -1};
    const uint8_t kind = next(from);
    if (kind < 128)
        return special[kind % 12];
    uint64_t value = 0;
    for (int i = 0; i < (kind & 7) + 1; i++)
        value = value << 8 | next(from);
    return (int64_t)value;
}

/* Storage for shapes and strides longer than any rank that the model has. */
static int64_t shapes[3][4], strides[3][4];

static void bend(bytes *from, workload *work) {
    const uint8_t what = next(from);
    const unsigned index = what >> 4 & 3;
    if (index == 3) { /* the configuration */
        switch (what & 7) {
        case 0:
            work->config.arena_bytes = (size_t)next_number(from) % (SUMS_ARENA_LARGE + 1);
            break;
        case 1:
            work->config.arena = next(from) < 128 ? NULL : work->arena + next(from) % 64;
            work->config.arena_bytes -= 64;
            break;
        case 2:
            work->config.params_bytes = (size_t)next_number(from) % (SUMS_IMAGE_BYTES + 1);
            break;
        case 3:
            work->config.params = next(from) < 128 ? NULL : work->image + next(from) % 128;
            work->config.params_bytes = 64;
            break;
        case 4: /* the payload too, but then only the bits that matter to the check */
            work->image[next(from) % SUMS_IMAGE_BYTES] ^= (unsigned char)(1u << (next(from) & 7));
            break;
        default:
            workload_sign(work->image);
        }
        return;
    }
    DLTensor *tensor = index < 2 ? &work->inputs[index] : &work->outputs[0];
    switch (what & 15) {
    case 0:
        tensor->ndim = (int32_t)next_number(from);
        break;
    case 1:
        tensor->dtype.code = next(from);
        break;
    case 2:
        tensor->dtype.bits = next(from);
        break;
    case 3:
        tensor->dtype.lanes = next(from);
        break;
    case 4:
        tensor->shape = NULL;
        break;
    case 5:
    case 6:
    case 7:
    case 8:
        if (tensor->shape != NULL)
            shapes[index][(what & 15) - 5] = next_number(from);
        break;
    case 9:
        for (int i = 0; i < 4; i++)
            strides[index][i] = next_number(from);
        tensor->strides = strides[index];
        break;
    case 10:
        tensor->device.device_type = (DLDeviceType)(next(from) % 20);
        break;
    case 11:
        tensor->data = NULL;
        break;
    case 12:
        tensor->byte_offset =
            UINT64_MAX - next(from); /* always past the end of the address space */
        break;
    case 13:
        tensor->data = work->arena + next(from);
        break;
    case 14:
        if (tensor->data != NULL)
            tensor->data = (void *)((uintptr_t)tensor->data ^ (next(from) & 1));
        break;
    default: { /* another size, consistently */
        const int64_t batch = next(from) % 9, seq = next(from) % 9 * 8;
        for (int i = 0; i < 3; i++)
            shapes[i][0] = batch;
        shapes[0][1] = shapes[1][1] = seq;
    }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static workload work;
    kiln_session session;
    bytes from = {data, size};
    workload_make(&work, 2, 16);
    for (int i = 0; i < 3; i++) {
        DLTensor *tensor = i < 2 ? &work.inputs[i] : &work.outputs[0];
        for (int axis = 0; axis < tensor->ndim; axis++)
            shapes[i][axis] = tensor->shape[axis];
        tensor->shape = shapes[i];
    }
    while (from.left > 0)
        bend(&from, &work);
    kiln_status status = kiln_open(&session, &sums, &work.config);
    if (status == KILN_OK)
        status = kiln_run(&session, work.inputs, work.outputs);
    require(kiln_error(&session)->status == status);
    char text[64];
    require(kiln_detail_text(kiln_error(&session), text, sizeof text) > 0);
    if (status != KILN_OK) {
        require(workload_untouched(&work));
    } else if (work.inputs[0].data == work.x && work.inputs[1].data == work.mask) {
        for (int axis = 0; axis < 2; axis++)
            work.x_shape[axis] = shapes[0][axis];
        require(work.outputs[0].data != work.y || workload_right(&work));
    }
    return 0;
}
