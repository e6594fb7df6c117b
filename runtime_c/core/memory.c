/* memory.c: check the addresses and the sizes in bytes of tensors.
 *
 * 1. Each tensor alone: its device, compact strides, data not null, an address that is a multiple
 *    of the element's size, and an end inside the address space.
 * 2. Kernels are compiled for outputs that overlap no other tensor: each output is compared with
 *    every input, every other output, arena and state; each input with arena and state.
 * Every multiplication of sizes is checked; a tensor larger than the address space is an error.
 */
#include "internal.h"

/* a * b, or SIZE_MAX if the product is SIZE_MAX or more; without division or a wider type. */
static size_t multiply(size_t a, uint32_t b) {
#if SIZE_MAX > UINT32_MAX
    const uint64_t low = (a & UINT32_MAX) * b;
    const uint64_t high = (a >> 32) * b + (low >> 32);
    return high >> 32 == 0 ? high << 32 | (low & UINT32_MAX) : SIZE_MAX;
#else
    const uint64_t product = (uint64_t)a * b;
    return product < SIZE_MAX ? (size_t)product : SIZE_MAX;
#endif
}

size_t kiln_tensor_shape(const kiln_tensor *tensor, const int64_t *dims, int64_t *shape) {
    if (tensor == NULL)
        return SIZE_MAX;
    size_t bytes = (size_t)(tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
    bool empty = false;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t size = tensor->shape[axis];
        if (size < 0)
            size = dims == NULL ? 0 : dims[-1 - size];
        if (shape != NULL)
            shape[axis] = size;
        empty = empty || size == 0;
        if (bytes != SIZE_MAX) /* too many remain too many */
            bytes = (uint64_t)size <= INT32_MAX ? multiply(bytes, (uint32_t)size) : SIZE_MAX;
    }
    return empty ? 0 : bytes;
}

DLTensor kiln_bind(const kiln_tensor *tensor, const int64_t *shape, const void *data) {
    return (DLTensor){.data = (void *)data,
                      .device = {kDLCPU, 0},
                      .ndim = tensor->rank,
                      .dtype = tensor->dtype,
                      .shape = (int64_t *)shape};
}

/* Axes of size 1 may have any stride, and so may all axes of an empty tensor. Like check_place,
 * returns the status, and stores numbers in `error`, whose others are 0, where it finds one. */
static kiln_status check_strides(const DLTensor *given, kiln_detail *error) {
    int64_t compact = 1;
    for (int32_t axis = given->ndim - 1; axis >= 0; axis--) {
        if (given->shape[axis] != 1 && given->strides[axis] != compact) {
            error->axis = axis;
            error->value = given->strides[axis];
            error->min = error->max = compact;
            return KILN_BAD_STRIDES;
        }
        compact *= given->shape[axis]; /* no overflow: the tensor's bytes fit in a size_t */
    }
    return KILN_OK;
}

static kiln_status check_place(const kiln_tensor *want, const DLTensor *given, size_t bytes,
                               bool on_gpu, kiln_detail *error) {
    const int32_t device = (int32_t)given->device.device_type;
    const int32_t most = on_gpu ? kDLCUDAHost : kDLCPU;
    if (device < kDLCPU || device > most) {
        error->value = device;
        error->min = kDLCPU;
        error->max = most;
        return KILN_BAD_DEVICE;
    }
    if (bytes == SIZE_MAX)
        return KILN_BAD_OFFSET;
    if (bytes == 0)
        return KILN_OK;
    if (given->strides != NULL) {
        const kiln_status status = check_strides(given, error);
        if (status != KILN_OK)
            return status;
    }
    const uintptr_t data = (uintptr_t)given->data;
    if (data == 0)
        return KILN_NULL_DATA;
    if (given->byte_offset > UINTPTR_MAX - data ||
        bytes > UINTPTR_MAX - data - (uintptr_t)given->byte_offset) {
        error->value = (int64_t)given->byte_offset;
        return KILN_BAD_OFFSET;
    }
    const uint32_t element = (want->dtype.bits + 7u) / 8u; /* 1, 2, 4 or 8 */
    const uint32_t beyond = (uint32_t)(data + (uintptr_t)given->byte_offset) & (element - 1);
    if (beyond == 0)
        return KILN_OK;
    error->value = beyond;
    error->multiple = element;
    return KILN_BAD_ALIGNMENT;
}

typedef struct span {
    uintptr_t begin;
    size_t bytes;
} span;

static span span_of(const kiln_tensor *tensor, const DLTensor *given, const int64_t *dims) {
    return (span){(uintptr_t)given->data + (uintptr_t)given->byte_offset,
                  kiln_tensor_shape(tensor, dims, NULL)};
}

/* Whether two ranges overlap. Neither wraps around the end of the address space, so without an
 * overlap both differences are at least the other range's size. */
static bool overlap(span a, span b) {
    return a.bytes > 0 && b.bytes > 0 &&
           (a.begin - b.begin < b.bytes || b.begin - a.begin < a.bytes);
}

kiln_status kiln_check_block(const void *memory, size_t bytes, size_t needed, size_t align,
                             kiln_where where, kiln_status first, kiln_detail *detail) {
    kiln_detail error = {.status = first, .where = where, .index = -1, .axis = -1};
    error.min = (int64_t)needed;
    if (memory != NULL) {
        error.status = (kiln_status)(first + 1); /* …_ALIGNMENT */
        error.value = (int64_t)((uintptr_t)memory & (align - 1));
        error.multiple = (int64_t)align;
        if (error.value == 0) {
            error.status = (kiln_status)(first + 2); /* …_TOO_SMALL */
            error.value = (int64_t)bytes;
            error.multiple = 0;
            if (bytes >= needed)
                return KILN_OK;
        }
    }
    return needed == 0 ? KILN_OK : kiln_fail(detail, &error);
}

kiln_status kiln_check_memory(const kiln_model *model, const DLTensor *inputs,
                              const DLTensor *outputs, const int64_t *dims,
                              const kiln_config *config, size_t arena_bytes, kiln_detail *detail) {
    const uint32_t first_output = model->inputs_count;
    const uint32_t count = first_output + model->outputs_count;
    const span own[] = {{(uintptr_t)config->arena, arena_bytes},
                        {(uintptr_t)config->state, model->state_bytes}};
    const uint32_t own_count = sizeof own / sizeof own[0];
    kiln_detail error = {.axis = -1};
    /* Inputs, then outputs; each is checked by itself before it is compared with those before it.
     */
    for (uint32_t i = 0; i < count; i++) {
        const bool written = i >= first_output;
        const uint32_t index = written ? i - first_output : i;
        const kiln_tensor *want = written ? &model->outputs[index] : &model->inputs[index];
        const DLTensor *given = written ? &outputs[index] : &inputs[index];
        const span here = span_of(want, given, dims);
        error.status = check_place(want, given, here.bytes, model->gpu != NULL, &error);
        /* Arena and state first, then, for what is written, the other tensors. */
        const uint32_t others = own_count + (written ? i : 0);
        for (uint32_t j = 0; error.status == KILN_OK && j < others; j++) {
            const uint32_t input = j - own_count, output = input - first_output;
            const span there = j < own_count ? own[j]
                               : input < first_output
                                   ? span_of(&model->inputs[input], &inputs[input], dims)
                                   : span_of(&model->outputs[output], &outputs[output], dims);
            if (overlap(here, there)) {
                error.status = KILN_OVERLAP;
                error.value = j < own_count ? -1 : (int64_t)input; /* inputs are counted first */
            }
        }
        if (error.status == KILN_OK && model->in_region != NULL &&
            model->in_region(model, config, (const void *)here.begin, here.bytes)) {
            error.status = KILN_OVERLAP;
            error.value = -1;
        }
        if (error.status == KILN_OK)
            continue;
        error.where = written ? KILN_AT_OUTPUT : KILN_AT_INPUT;
        error.name = want->name;
        error.index = (int32_t)index;
        return kiln_fail(detail, &error);
    }
    return KILN_OK;
}
