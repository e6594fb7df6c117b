/* indices.c: steps of a plan that check indices before a kernel reads or writes with them. Linked
 * only into programs whose model has such steps. */
#include "internal.h"

/* The element that was found outside of low..size - 1. */
static int32_t refuse(const kiln_frame *frame, const kiln_index_check *check, int64_t value,
                      int32_t low, int32_t size) {
    *frame->detail = (kiln_detail){.status = KILN_BAD_INDEX,
                                   .where = KILN_AT_STEP,
                                   .name = check->name,
                                   .index = check->step,
                                   .axis = check->axis,
                                   .value = value,
                                   .min = low,
                                   .max = size - 1};
    return KILN_STEP_DETAIL;
}

/* Elements first, first + stride, ... of `rows` rows of `stride` elements each. */
#define CHECK_INDICES(suffix, type)                                                                \
    int32_t kiln_check_indices_##suffix(const kiln_frame *frame, const kiln_index_check *check,    \
                                        const type *indices, int32_t rows, int32_t stride,         \
                                        int32_t first, int32_t size) {                             \
        const int32_t low = check->wraps ? -size : 0;                                              \
        for (int32_t row = 0; row < rows; row++) {                                                 \
            const type value = indices[(size_t)row * (size_t)stride + (size_t)first];              \
            if (value < low || value >= size)                                                      \
                return refuse(frame, check, value, low, size);                                     \
        }                                                                                          \
        return 0;                                                                                  \
    }

CHECK_INDICES(int32, int32_t)
CHECK_INDICES(int64, int64_t)
