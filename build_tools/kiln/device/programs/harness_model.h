/* harness_model.h: what a test program has to know of its model. Apart from harness.h, whose names
 * a model may have.
 */
#ifndef KILN_HARNESS_MODEL_H
#define KILN_HARNESS_MODEL_H

#include "kiln.h"

/* The model of the bundle. */
const kiln_model *harness_model(void);

/* Bytes of the bundle's params image. */
size_t harness_params_bytes(void);

/* The model's own plan function, whose parameters are those of `dims` that its inputs have. */
kiln_status harness_typed_plan(const int64_t *dims, kiln_plan_result *result, kiln_detail *detail);

/* Print an error to stderr and exit with status 3. */
_Noreturn void harness_stop(const char *what, const char *name);

#endif
