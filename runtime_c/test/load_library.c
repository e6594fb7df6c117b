/* load_library.c: `sums` as a shared library, for load_test.c. FACTOR: its results are so many
 * times as large. OTHER: its first input has another name. Its constructor sets the variable
 * LOADED. */
#define _POSIX_C_SOURCE 200809L
#define sums            sums_itself
#include "test_model.c"
#undef sums
#include <stdlib.h>

kiln_model sums;

static int32_t scaled(const kiln_frame *frame, uint32_t bucket, uint32_t number) {
    const int32_t status = step(frame, bucket, number);
    float *y = (float *)frame->outputs[0].data;
    for (int64_t i = 0; number == 1 && i < frame->dims[0] * 2; i++)
        y[i] *= FACTOR;
    return status;
}

static const kiln_variant scaled_variants[] = {{"only", 0, scaled}};
static kiln_tensor own_inputs[2];

__attribute__((constructor)) static void fill(void) {
    (void)setenv("LOADED", "1", 1);
    sums = sums_itself;
    sums.variants = scaled_variants;
    own_inputs[0] = inputs[0];
    own_inputs[1] = inputs[1];
#ifdef OTHER
    own_inputs[0].name = "other";
#endif
    sums.inputs = own_inputs;
}
