/* cuda_convert.c: prepares the launches that convert an input of uint8 or float16 to float32.
 *
 * Axes of size 1 are left out, and neighbours whose elements follow one another in both tensors are
 * made one, except the axis that scale and offset belong to: the kernel divides by six sizes at
 * most.
 */
#include "cuda_convert.h"

_Static_assert(sizeof(kiln_cuda_conversion) == 312, "as the kernel has it");

static bool has_type(const DLTensor *given, uint8_t code, uint8_t bits) {
    return given->dtype.code == code && given->dtype.bits == bits && given->dtype.lanes == 1;
}

bool kiln_cuda_converts(const kiln_tensor *want, const DLTensor *given) {
    const DLDataType type = want->dtype;
    return type.code == kDLFloat && type.bits == 32 && type.lanes == 1 &&
           (has_type(given, kDLUInt, 8) || has_type(given, kDLFloat, 16));
}

/* Stride of an axis, in elements. */
static int64_t stride_of(const DLTensor *given, int32_t axis) {
    int64_t stride = 1;
    if (given->strides != NULL)
        return given->strides[axis];
    for (int32_t i = given->ndim - 1; i > axis; i--)
        stride *= given->shape[i];
    return stride;
}

/* Whether the elements fill their memory: some axis has the stride 1, one the size of that axis,
 * and so on. Axes are at most 64, as the bits of `found`. */
static kiln_status check_compact(const DLTensor *given, kiln_detail *error) {
    uint64_t found = 0;
    int64_t expected = 1;
    for (int32_t known = 0; known < given->ndim; known++) {
        int32_t next = -1, other = -1;
        for (int32_t axis = 0; axis < given->ndim; axis++) {
            if (given->shape[axis] == 1 || (found >> axis & 1u) != 0)
                continue;
            other = axis;
            if (stride_of(given, axis) == expected)
                next = axis;
        }
        if (other < 0)
            break;
        if (next < 0) {
            error->axis = other;
            error->value = stride_of(given, other);
            error->min = error->max = expected;
            return KILN_BAD_STRIDES;
        }
        found |= (uint64_t)1 << next;
        expected *= given->shape[next];
    }
    return KILN_OK;
}

static kiln_status check_scaling(const DLTensor *given, const kiln_cuda_scaling *scaling,
                                 kiln_detail *error) {
    if (scaling->count > 0 && scaling->scale == NULL)
        return KILN_NULL_ARGUMENT;
    if (scaling->count <= 1)
        return KILN_OK;
    error->value = (int64_t)scaling->axis + 1; /* the rank that such an axis needs at least */
    error->min = error->max = given->ndim;
    if (scaling->axis < 0 || scaling->axis >= given->ndim)
        return KILN_BAD_RANK;
    error->axis = scaling->axis;
    error->value = given->shape[scaling->axis];
    error->min = error->max = scaling->count;
    return error->value == error->min ? KILN_OK : KILN_BAD_SHAPE;
}

/* Address, alignment, and, where the tensor must be compact, its strides. */
static kiln_status check_memory(const DLTensor *given, bool compact, kiln_detail *error) {
    const uintptr_t element = given->dtype.bits / 8u, data = (uintptr_t)given->data;
    error->axis = -1;
    error->value = error->min = error->max = 0;
    if (data == 0)
        return KILN_NULL_DATA;
    if (given->byte_offset > UINTPTR_MAX - data) {
        error->value = (int64_t)given->byte_offset;
        return KILN_BAD_OFFSET;
    }
    error->value = (int64_t)((data + (uintptr_t)given->byte_offset) & (element - 1));
    error->multiple = (int64_t)element;
    if (error->value != 0)
        return KILN_BAD_ALIGNMENT;
    error->multiple = 0;
    return compact ? check_compact(given, error) : KILN_OK;
}

kiln_status kiln_cuda_conversion_of(const DLTensor *given, const kiln_cuda_scaling *scaling,
                                    uint64_t to, bool compact, kiln_cuda_conversion *conversion,
                                    kiln_detail *error) {
    kiln_cuda_conversion c = {.to = to, .count = 1, .channels = 1};
    bool has_channels = false;
    for (int32_t axis = 0; axis < given->ndim; axis++)
        c.count *= (uint64_t)given->shape[axis];
    *conversion = c;
    kiln_status status = check_scaling(given, scaling, error);
    if (status == KILN_OK && c.count > 0)
        status = check_memory(given, compact, error);
    if (status != KILN_OK || c.count == 0)
        return status;
    c.from = (uintptr_t)given->data + given->byte_offset;
    c.is_half = given->dtype.bits == 16;
    int64_t compact_stride = (int64_t)c.count;
    for (int32_t axis = 0; axis < given->ndim; axis++) {
        const uint64_t size = (uint64_t)given->shape[axis];
        const bool is_channel = scaling->count > 1 && axis == scaling->axis;
        const int64_t stride = stride_of(given, axis);
        compact_stride /= (int64_t)size;
        if (size == 1)
            continue;
        const bool after_channels = has_channels && c.channel_axis + 1 == c.axes;
        if (c.axes > 0 && !is_channel && !after_channels &&
            c.from_strides[c.axes - 1] == stride * (int64_t)size) {
            c.sizes[c.axes - 1] *= size;
            c.from_strides[c.axes - 1] = stride;
            c.to_strides[c.axes - 1] = compact_stride;
            continue;
        }
        if (c.axes == KILN_CONVERSION_AXES) {
            error->axis = axis;
            error->value = stride;
            error->min = error->max = compact_stride;
            return KILN_BAD_STRIDES;
        }
        if (is_channel) {
            has_channels = true;
            c.channel_axis = c.axes;
            c.channels = (uint32_t)size;
        }
        c.sizes[c.axes] = size;
        c.from_strides[c.axes] = stride;
        c.to_strides[c.axes] = compact_stride;
        c.axes++;
    }
    if (!has_channels)
        c.channel_axis = c.axes;
    *conversion = c;
    return KILN_OK;
}

uint32_t kiln_cuda_conversion_part(const kiln_cuda_conversion *whole,
                                   const kiln_cuda_scaling *scaling, uint32_t first,
                                   kiln_cuda_conversion *part) {
    const uint32_t left = whole->channels - first;
    const uint32_t taken = left < KILN_CONVERSION_CHANNELS ? left : KILN_CONVERSION_CHANNELS;
    *part = *whole;
    for (uint32_t i = 0; i < taken; i++) {
        part->scale[i] = scaling->count > 0 ? scaling->scale[first + i] : 1.0f;
        part->offset[i] =
            scaling->count > 0 && scaling->offset != NULL ? scaling->offset[first + i] : 0.0f;
    }
    if (whole->channel_axis == whole->axes)
        return taken;
    const uint32_t axis = whole->channel_axis;
    const int64_t element = whole->is_half != 0 ? 2 : 1;
    part->sizes[axis] = taken;
    part->count = whole->count / whole->channels * taken;
    part->from += (uint64_t)(whole->from_strides[axis] * element * (int64_t)first);
    part->to += (uint64_t)(whole->to_strides[axis] * (int64_t)sizeof(float) * (int64_t)first);
    return taken;
}
