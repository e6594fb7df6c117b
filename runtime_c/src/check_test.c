/* check_test.c: wrong shapes and dimensions, each with its status, its detail, and nothing written.
 */
#include "test.h"
#include "test_model.h"

#include <stdbool.h>

static workload work;
static kiln_session session;

static kiln_status run(void) {
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    return kiln_run(&session, work.inputs, work.outputs);
}

/* The run fails so, and the detail names the tensor, the axis, and both numbers. */
static void expect(kiln_status status, const char *name, int32_t axis, int64_t value, int64_t min,
                   int64_t max) {
    const kiln_detail *error = kiln_error(&session);
    CHECK(run() == status);
    CHECK(error->status == status);
    CHECK(error->name != NULL && strcmp(error->name, name) == 0);
    CHECK(error->axis == axis);
    CHECK(error->value == value && error->min == min && error->max == max);
    const bool of_dim = status == KILN_DIM_RANGE || status == KILN_DIM_MULTIPLE;
    CHECK(error->multiple == (!of_dim ? 0 : axis == 0 ? 1 : 8));
    CHECK(workload_untouched(&work));
    CHECK(kiln_steps_left(&session) == 0);
    workload_make(&work, 2, 16);
}

static void test_form(void) {
    work.inputs[0].ndim = 2;
    expect(KILN_BAD_RANK, "x", -1, 2, 3, 3);
    work.inputs[1].ndim = -1;
    expect(KILN_BAD_RANK, "mask", -1, -1, 2, 2);
    work.outputs[0].ndim = INT32_MAX;
    expect(KILN_BAD_RANK, "y", -1, INT32_MAX, 2, 2);
    const int64_t float32 = kDLFloat | 32 << 8 | 1 << 16, int8 = kDLInt | 8 << 8 | 1 << 16;
    work.inputs[1].dtype = work.inputs[0].dtype;
    expect(KILN_BAD_DTYPE, "mask", -1, float32, int8, 0);
    work.inputs[1].dtype.lanes = 4;
    expect(KILN_BAD_DTYPE, "mask", -1, kDLInt | 8 << 8 | 4 << 16, int8, 0);
    work.outputs[0].dtype.bits = 16;
    expect(KILN_BAD_DTYPE, "y", -1, kDLFloat | 16 << 8 | 1 << 16, float32, 0);
    work.inputs[0].shape = NULL;
    expect(KILN_NULL_DATA, "x", -1, 0, 0, 0);
    work.outputs[0].shape = NULL;
    expect(KILN_NULL_DATA, "y", -1, 0, 0, 0);
}

static void test_sizes(void) {
    work.x_shape[2] = 3;
    expect(KILN_BAD_SHAPE, "x", 2, 3, 2, 2);
    work.y_shape[1] = INT64_MAX;
    expect(KILN_BAD_SHAPE, "y", 1, INT64_MAX, 2, 2);
    work.x_shape[0] = 0;
    expect(KILN_DIM_RANGE, "x", 0, 0, 1, 8);
    work.x_shape[0] = 9;
    expect(KILN_DIM_RANGE, "x", 0, 9, 1, 8);
    work.x_shape[0] = INT64_MIN;
    expect(KILN_DIM_RANGE, "x", 0, INT64_MIN, 1, 8);
    work.x_shape[1] = 72;
    expect(KILN_DIM_RANGE, "x", 1, 72, 8, 64);
    work.x_shape[1] = 12;
    expect(KILN_DIM_MULTIPLE, "x", 1, 12, 8, 64);
    work.mask_shape[1] = 8;
    expect(KILN_DIM_MISMATCH, "mask", 1, 8, 16, 16);
    work.mask_shape[0] = 1;
    expect(KILN_DIM_MISMATCH, "mask", 0, 1, 2, 2);
    work.y_shape[0] = 1;
    expect(KILN_DIM_MISMATCH, "y", 0, 1, 2, 2);
}

static void test_null_arrays(void) {
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, NULL, work.outputs) == KILN_NULL_ARGUMENT);
    CHECK(kiln_error(&session)->where == KILN_AT_INPUT);
    CHECK(kiln_run(&session, work.inputs, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_error(&session)->where == KILN_AT_OUTPUT);
    CHECK(workload_untouched(&work));
}

static void test_buckets(void) {
    for (int64_t batch = 1; batch <= SUMS_MAX_BATCH; batch++) {
        for (int64_t seq = 8; seq <= SUMS_MAX_SEQ; seq += 8) {
            workload_make(&work, batch, seq);
            const bool built = batch <= 2 || seq >= 24;
            CHECK(run() == (built ? KILN_OK : KILN_NO_BUCKET));
            CHECK(built ? workload_right(&work) : workload_untouched(&work));
            if (built)
                CHECK(session.bucket == (seq >= 24 ? 1u : 0u));
        }
    }
    workload_make(&work, 2, 16);
}

static void test_plan(void) {
    kiln_plan_result plan;
    kiln_detail detail;
    /* Data, strides and device are not looked at. */
    work.inputs[0].data = NULL;
    work.inputs[1].device.device_type = kDLCUDA;
    CHECK(kiln_plan(&sums, work.inputs, &plan, &detail) == KILN_OK);
    CHECK(plan.bucket == 0 && plan.steps == 2 && plan.arena_bytes == SUMS_ARENA_SMALL);
    CHECK(plan.dims[0] == 2 && plan.dims[1] == 16);
    int64_t shape[2];
    CHECK(kiln_tensor_shape(&sums.outputs[0], plan.dims, shape) == 16);
    CHECK(shape[0] == 2 && shape[1] == 2);

    const int64_t large[2] = {8, 64}, gap[2] = {3, 16}, odd[2] = {3, 20}, none[2] = {3, 0};
    CHECK(kiln_plan_dims(&sums, large, &plan, NULL) == KILN_OK && plan.bucket == 1);
    plan.bucket = 77;
    CHECK(kiln_plan_dims(&sums, gap, &plan, &detail) == KILN_NO_BUCKET);
    CHECK(kiln_plan_dims(&sums, odd, &plan, &detail) == KILN_DIM_MULTIPLE);
    CHECK(detail.where == KILN_AT_DIM && detail.index == 1 && detail.value == 20);
    CHECK(kiln_plan_dims(&sums, none, &plan, NULL) == KILN_DIM_RANGE);
    CHECK(plan.bucket == 77); /* untouched by errors */
    CHECK(kiln_plan_dims(&sums, NULL, &plan, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_plan_dims(&sums, large, NULL, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_plan(NULL, work.inputs, &plan, &detail) == KILN_NULL_ARGUMENT);
}

int main(void) {
    workload_make(&work, 2, 16);
    test_form();
    test_sizes();
    test_null_arrays();
    test_buckets();
    test_plan();
    return test_result();
}
