/* model.c: the model that a test program runs. The other files of a program are the same for every
 * model.
 *
 *     -DKILN_HEADER="resnet.h" -DKILN_MODEL=resnet
 *     -DKILN_PARAMS_FILE_BYTES=RESNET_PARAMS_FILE_BYTES
 *     -DKILN_TYPED_PLAN(dims, result, detail)=resnet_plan((dims)[0], (result), (detail))
 */
#include "harness_model.h"

#include KILN_HEADER

const kiln_model *harness_model(void) {
    return &KILN_MODEL;
}

size_t harness_params_bytes(void) {
    return KILN_PARAMS_FILE_BYTES;
}

kiln_status harness_typed_plan(const int64_t *dims, kiln_plan_result *result, kiln_detail *detail) {
    (void)dims; /* of a model without dimensions */
    return KILN_TYPED_PLAN(dims, result, detail);
}
