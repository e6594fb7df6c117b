/* counts.c: steps of a plan that turn a count, which an earlier step has computed, into a size of
 * the run. Linked into programs whose model has such steps, and into no other. */
#include "internal.h"

int32_t kiln_count(const kiln_frame *frame, const kiln_counted *about, const int64_t *count,
                   const void *rows) {
    (void)rows; /* named by the plan, so that they are written before the size is known */
    int64_t *size = &frame->dims[about->dim];
    if (*count < 0 || *count > *size) {
        *frame->detail = (kiln_detail){.status = KILN_TOO_MANY,
                                       .where = KILN_AT_STEP,
                                       .name = about->name,
                                       .index = about->step,
                                       .axis = -1,
                                       .value = *count,
                                       .max = *size};
        return KILN_STEP_DETAIL;
    }
    *size = *count;
    if (about->derive != NULL)
        about->derive(frame->dims);
    return 0;
}
