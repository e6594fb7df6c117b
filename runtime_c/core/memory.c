/* memory.c: where tensors lie, and how large they are.
 *
 * 1. Each tensor by itself: device, compact strides, data not null, an address that does not wrap,
 *    and a multiple of the element's size.
 * 2. Kernels are compiled on the promise that what they write overlaps nothing else: each output
 *    against every input, every other output, arena and state; each input against arena and state.
 * Sizes multiply with a check on every step; a tensor larger than the address space is an error.
 */
#include "internal.h"

/* *product = a * b, false if that needs more than 64 bits. No division, no 128-bit type. */
static bool multiply(uint64_t a, uint32_t b, uint64_t *product) {
    const uint64_t low = (a & UINT32_MAX) * b;
    const uint64_t high = (a >> 32) * b + (low >> 32);
    *product = high << 32 | (low & UINT32_MAX);
    return high >> 32 == 0;
}

size_t kiln_tensor_shape(const kiln_tensor *tensor, const int64_t *dims, int64_t *shape) {
    uint64_t bytes = (uint64_t)(tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
    bool fits = true, empty = false;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t size = tensor->shape[axis];
        if (size < 0)
            size = dims == NULL ? 0 : dims[-1 - size];
        if (shape != NULL)
            shape[axis] = size;
        empty = empty || size == 0;
        fits = fits && size >= 0 && size <= INT32_MAX && multiply(bytes, (uint32_t)size, &bytes);
    }
    if (empty)
        return 0;
    return fits && bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
}

DLTensor kiln_bind(const kiln_tensor *tensor, const int64_t *shape, const void *data) {
    return (DLTensor){.data = (void *)data,
                      .device = {kDLCPU, 0},
                      .ndim = tensor->rank,
                      .dtype = tensor->dtype,
                      .shape = (int64_t *)shape};
}

/* Axes of size 1 may have any stride, and so may all axes of an empty tensor. */
static kiln_status check_strides(const DLTensor *given, kiln_detail *error, kiln_detail *detail) {
    int64_t compact = 1;
    for (int32_t axis = given->ndim - 1; axis >= 0; axis--) {
        if (given->shape[axis] != 1 && given->strides[axis] != compact) {
            error->status = KILN_BAD_STRIDES;
            error->axis = axis;
            error->value = given->strides[axis];
            error->min = error->max = compact;
            return kiln_fail(detail, error);
        }
        compact *= given->shape[axis]; /* no overflow: the tensor's bytes fit in a size_t */
    }
    return KILN_OK;
}

static kiln_status check_place(const kiln_tensor *want, const DLTensor *given, size_t bytes,
                               bool on_gpu, kiln_detail *error, kiln_detail *detail) {
    error->value = (int64_t)given->device.device_type;
    error->min = kDLCPU;
    error->max = on_gpu ? kDLCUDAHost : kDLCPU;
    error->status = KILN_BAD_DEVICE;
    if (error->value < error->min || error->value > error->max)
        return kiln_fail(detail, error);

    error->value = error->min = error->max = 0;
    error->status = KILN_BAD_OFFSET;
    if (bytes == SIZE_MAX)
        return kiln_fail(detail, error);
    if (bytes == 0)
        return KILN_OK;
    if (given->strides != NULL) {
        kiln_status status = check_strides(given, error, detail);
        if (status != KILN_OK)
            return status;
    }
    const uintptr_t data = (uintptr_t)given->data;
    if (data == 0) {
        error->status = KILN_NULL_DATA;
        return kiln_fail(detail, error);
    }
    if (given->byte_offset > UINTPTR_MAX - data ||
        bytes > UINTPTR_MAX - data - (uintptr_t)given->byte_offset) {
        error->value = (int64_t)given->byte_offset;
        return kiln_fail(detail, error);
    }
    const uintptr_t element = (uintptr_t)(want->dtype.bits + 7u) / 8u; /* 1, 2, 4 or 8 */
    error->status = KILN_BAD_ALIGNMENT;
    error->value = (int64_t)((data + (uintptr_t)given->byte_offset) & (element - 1));
    error->multiple = (int64_t)element;
    return error->value == 0 ? KILN_OK : kiln_fail(detail, error);
}

typedef struct span {
    uintptr_t begin;
    size_t bytes;
} span;

static span span_of(const kiln_tensor *tensor, const DLTensor *given, const int64_t *dims) {
    return (span){(uintptr_t)given->data + (uintptr_t)given->byte_offset,
                  kiln_tensor_shape(tensor, dims, NULL)};
}

static bool overlap(span a, span b) {
    return a.bytes > 0 && b.bytes > 0 &&
           (a.begin < b.begin ? b.begin - a.begin < a.bytes : a.begin - b.begin < b.bytes);
}

kiln_status kiln_check_block(const void *memory, size_t bytes, size_t needed, size_t align,
                             kiln_where where, kiln_status first, kiln_detail *detail) {
    kiln_detail error = {.status = first, .where = where, .index = -1, .axis = -1};
    if (needed == 0)
        return KILN_OK;
    error.min = (int64_t)needed;
    if (memory == NULL)
        return kiln_fail(detail, &error);
    error.status = (kiln_status)(first + 1); /* …_ALIGNMENT */
    error.value = (int64_t)((uintptr_t)memory & (align - 1));
    error.multiple = (int64_t)align;
    if (error.value != 0)
        return kiln_fail(detail, &error);
    error.status = (kiln_status)(first + 2); /* …_TOO_SMALL */
    error.value = (int64_t)bytes;
    error.multiple = 0;
    return bytes >= needed ? KILN_OK : kiln_fail(detail, &error);
}

kiln_status kiln_check_memory(const kiln_model *model, const DLTensor *inputs,
                              const DLTensor *outputs, const int64_t *dims,
                              const kiln_config *config, size_t arena_bytes, kiln_detail *detail) {
    const uint32_t first_output = model->inputs_count;
    const uint32_t count = first_output + model->outputs_count;
    const span arena = {(uintptr_t)config->arena, arena_bytes};
    const span state = {(uintptr_t)config->state, model->state_bytes};
    /* Inputs, then outputs; each is checked by itself before it is compared with those before it.
     */
    for (uint32_t i = 0; i < count; i++) {
        const bool written = i >= first_output;
        const uint32_t index = written ? i - first_output : i;
        const kiln_tensor *want = written ? &model->outputs[index] : &model->inputs[index];
        const DLTensor *given = written ? &outputs[index] : &inputs[index];
        kiln_detail error = {.where = written ? KILN_AT_OUTPUT : KILN_AT_INPUT,
                             .name = want->name,
                             .index = (int32_t)index,
                             .axis = -1};
        const kiln_status status = check_place(want, given, kiln_tensor_shape(want, dims, NULL),
                                               model->gpu != NULL, &error, detail);
        if (status != KILN_OK)
            return status;
        const span here = span_of(want, given, dims);
        error.status = KILN_OVERLAP;
        error.multiple = 0;
        error.value = -1; /* arena or state; otherwise the other tensor, inputs first */
        if (overlap(here, arena) || overlap(here, state))
            return kiln_fail(detail, &error);
        for (uint32_t j = 0; written && j < i; j++) {
            const uint32_t other = j < first_output ? j : j - first_output;
            const span there = j < first_output
                                   ? span_of(&model->inputs[other], &inputs[other], dims)
                                   : span_of(&model->outputs[other], &outputs[other], dims);
            error.value = j;
            if (overlap(here, there))
                return kiln_fail(detail, &error);
        }
    }
    return KILN_OK;
}
