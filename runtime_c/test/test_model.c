/* test_model.c: see test_model.h. */
#include "test_model.h"

#include <string.h>

#define UNTOUCHED 0x5a

static const unsigned char hash[32] = {1, 2, 3, 4, 5, 6, 7, 8};

static void sums_mask(const float *x, const int8_t *mask, float *masked, int64_t rows) {
    for (int64_t i = 0; i < rows * 2; i++)
        masked[i] = x[i] * (float)mask[i / 2];
}

static void sums_reduce(const float *masked, const float *w, float *y, int64_t seq, int32_t begin,
                        int32_t end) {
    for (int64_t row = begin; row < end; row++) {
        for (int64_t c = 0; c < 2; c++) {
            float total = 0;
            for (int64_t s = 0; s < seq; s++)
                total += masked[(row * seq + s) * 2 + c];
            y[row * 2 + c] = total * w[c];
        }
    }
}

struct sums_reduce_args {
    const float *a0;
    const float *a1;
    float *a2;
    int64_t a3;
};

static void sums_reduce_task(const void *memory, int32_t begin, int32_t end) {
    const struct sums_reduce_args *args = memory;
    sums_reduce(args->a0, args->a1, args->a2, args->a3, begin, end);
}

static int32_t step(const kiln_frame *frame, uint32_t bucket, uint32_t number) {
    (void)bucket;
    switch (number) {
    case 0:
        sums_mask(kiln_at_input(frame, 0, 0), kiln_at_input(frame, 1, 0), kiln_at_arena(frame, 0),
                  frame->dims[0] * frame->dims[1]);
        return 0;
    case 1: {
        const struct sums_reduce_args args = {kiln_at_arena(frame, 0), kiln_at_params(frame, 0),
                                              kiln_at_output(frame, 0, 0), frame->dims[1]};
        kiln_parallel(frame->pool, sums_reduce_task, &args, (int32_t)frame->dims[0]);
        return 0;
    }
    default:
        return -1;
    }
}

static int32_t select_bucket(const int64_t *dims) {
    if (dims[1] >= 17)
        return 1;
    return dims[0] <= 2 ? 0 : -1;
}

static const int64_t x_shape[] = {-1, -2, 2}, mask_shape[] = {-1, -2}, y_shape[] = {-1, 2};
static const kiln_tensor inputs[] = {{"x", {kDLFloat, 32, 1}, 3, x_shape, 0, 0},
                                     {"mask", {kDLInt, 8, 1}, 2, mask_shape, 0.5f, -3}};
static const kiln_tensor outputs[] = {{"y", {kDLFloat, 32, 1}, 2, y_shape, 0, 0}};
static const kiln_dim dims[] = {{"batch", 1, SUMS_MAX_BATCH, 1}, {"seq", 8, SUMS_MAX_SEQ, 8}};
static const int32_t small_box[] = {1, 2, 8, 16}, large_box[] = {1, 8, 24, 64};
static const kiln_bucket buckets[] = {{"small", SUMS_ARENA_SMALL, 2, small_box},
                                      {"large", SUMS_ARENA_LARGE, 2, large_box}};

static const kiln_variant variants[] = {{"only", 0, step}};

const kiln_model sums = {.abi = KILN_ABI,
                         .name = "sums",
                         .inputs_count = 2,
                         .outputs_count = 1,
                         .dims_count = 2,
                         .buckets_count = 2,
                         .inputs = inputs,
                         .outputs = outputs,
                         .dims = dims,
                         .buckets = buckets,
                         .variants = variants,
                         .variants_count = 1,
                         .arena_align = 64,
                         .params_bytes = 2 * sizeof(float),
                         .hash = hash,
                         .select = select_bucket,
                         .dynamic = &kiln_dynamic};

uint64_t plain_checksum(const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1u) != 0 ? 0xedb88320u : 0);
    }
    return crc ^ 0xffffffffu;
}

void workload_sign(unsigned char *image) {
    const uint64_t checksum = plain_checksum(image + 128, 64);
    memcpy(image + 24, &checksum, 8);
}

void workload_make(workload *work, int64_t batch, int64_t seq) {
    const float w[2] = {2.0f, -1.0f};
    const uint32_t version = 2, header = 128;
    const uint64_t bytes = sizeof w;

    memset(work, 0, sizeof *work);
    memset(work->arena, UNTOUCHED, sizeof work->arena);
    memset(work->y, UNTOUCHED, sizeof work->y);
    memcpy(work->image, "KILNPAR1", 8);
    memcpy(work->image + 8, &version, 4);
    memcpy(work->image + 12, &header, 4);
    memcpy(work->image + 16, &bytes, 8);
    memcpy(work->image + 32, hash, 32);
    memcpy(work->image + 128, w, sizeof w);
    workload_sign(work->image);
    for (int i = 0; i < SUMS_MAX_BATCH * SUMS_MAX_SEQ; i++) {
        work->x[2 * i] = (float)(i % 17);
        work->x[2 * i + 1] = (float)(i % 5);
        work->mask[i] = (int8_t)(i % 3 == 0);
    }
    work->x_shape[0] = work->mask_shape[0] = work->y_shape[0] = batch;
    work->x_shape[1] = work->mask_shape[1] = seq;
    work->x_shape[2] = work->y_shape[1] = 2;
    work->inputs[0] = kiln_bind(&sums.inputs[0], work->x_shape, work->x);
    work->inputs[1] = kiln_bind(&sums.inputs[1], work->mask_shape, work->mask);
    work->outputs[0] = kiln_bind(&sums.outputs[0], work->y_shape, work->y);
    work->config = (kiln_config){.arena = work->arena,
                                 .arena_bytes = sizeof work->arena,
                                 .params = work->image,
                                 .params_bytes = sizeof work->image};
}

int workload_right(const workload *work) {
    const int64_t batch = work->x_shape[0], seq = work->x_shape[1];
    float w[2];
    memcpy(w, work->image + 128, sizeof w);
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t c = 0; c < 2; c++) {
            float total = 0;
            for (int64_t s = 0; s < seq; s++)
                total += work->x[(b * seq + s) * 2 + c] * (float)work->mask[b * seq + s];
            /* Sums of small whole numbers: exact in any order. */
            if (work->y[b * 2 + c] != total * w[c])
                return 0;
        }
    }
    return 1;
}

int workload_untouched(const workload *work) {
    const unsigned char *y = (const unsigned char *)work->y;
    for (size_t i = 0; i < sizeof work->y; i++)
        if (y[i] != UNTOUCHED)
            return 0;
    for (size_t i = 0; i < sizeof work->arena; i++)
        if (work->arena[i] != UNTOUCHED)
            return 0;
    return 1;
}
