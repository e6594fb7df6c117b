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

/* Expect that the run fails with `status`, and that its detail names the tensor, the axis, the
 * value and the limits. */
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

static int32_t select_none(const int64_t *dims) {
    (void)dims;
    return -1;
}

/* Sizes that no bucket holds: the dimension at fault, and its nearest sizes that are served. */
static void test_nearest(void) {
    static const int32_t low[] = {1, 2, 8, 16}, high[] = {4, 6, 32, 40}, far[] = {4, 5, 48, 64};
    static const kiln_bucket buckets[] = {
        {"low", 0, 0, low}, {"high", 0, 0, high}, {"far", 0, 0, far}, {"special", 0, 0, NULL}};
    static const struct {
        int64_t dims[2], value;
        int32_t index;
        int64_t below, above;
    } cases[] = {
        {{3, 8}, 3, 0, 2, 4},     /* no batch of 3 */
        {{8, 64}, 8, 0, 6, -1},   /* nor of 8 */
        {{1, 24}, 24, 1, 16, 32}, /* batches of 1, but no seq of 24 */
        {{3, 24}, 3, 0, 2, 4},    /* the first of the two */
        {{1, 32}, 1, 0, -1, 4},   /* both, but not together */
        {{6, 16}, 6, 0, 2, -1},   {{6, 64}, 6, 0, 5, -1},
    };
    kiln_model model = sums;
    kiln_plan_result plan;
    kiln_detail detail;
    model.buckets = buckets;
    model.buckets_count = 4;
    model.select = select_none;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(kiln_plan_dims(&model, cases[i].dims, &plan, &detail) == KILN_NO_BUCKET);
        CHECK(detail.where == KILN_AT_DIM && detail.index == cases[i].index && detail.axis == -1);
        CHECK(strcmp(detail.name, cases[i].index == 0 ? "batch" : "seq") == 0);
        CHECK(detail.value == cases[i].value && detail.multiple == 0);
        CHECK(detail.min == cases[i].below && detail.max == cases[i].above);
    }
    model.dims_count = 0;
    CHECK(kiln_plan_dims(&model, NULL, &plan, &detail) == KILN_BAD_PLAN && detail.index == -1);
}

/* Three dimensions of which every pair of sizes is served: another size of the first one alone
 * would not do. */
static void test_none_nearest(void) {
    static const int32_t a[] = {1, 1, 8, 8, 5, 5}, b[] = {1, 1, 16, 16, 6, 6},
                         c[] = {2, 2, 8, 8, 6, 6};
    static const kiln_bucket buckets[] = {{"a", 0, 0, a}, {"b", 0, 0, b}, {"c", 0, 0, c}};
    static const kiln_dim three[] = {{"batch", 1, 8, 1}, {"seq", 8, 64, 8}, {"n", 1, 9, 1}};
    static const int64_t dims[3] = {2, 16, 5};
    kiln_model model = sums;
    kiln_plan_result plan;
    kiln_detail detail;
    model.buckets = buckets;
    model.buckets_count = 3;
    model.dims = three;
    model.dims_count = 3;
    model.select = select_none;
    CHECK(kiln_plan_dims(&model, dims, &plan, &detail) == KILN_NO_BUCKET);
    CHECK(detail.index == 0 && detail.value == 2 && detail.min == -1 && detail.max == -1);
}

static void test_plan(void) {
    kiln_plan_result plan;
    kiln_detail detail;
    /* Data, strides and device of the inputs are not checked. */
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

/* sums with a mask of (batch, seq / 8) and y of (batch, seq + batch): derived dimensions 2 and 3.
 */
static void derive(int64_t *dims) {
    dims[2] = dims[1] / 8;
    dims[3] = dims[1] + dims[0];
}

static void test_derived(void) {
    static const int64_t mask_shape[] = {-1, -3}, y_shape[] = {-1, -4};
    kiln_model model = sums;
    kiln_tensor inputs[2] = {sums.inputs[0], sums.inputs[1]}, output = sums.outputs[0];
    kiln_plan_result plan;
    inputs[1].shape = mask_shape;
    output.shape = y_shape;
    model.inputs = inputs;
    model.outputs = &output;
    model.derived_count = 2;
    model.derive = derive;
    workload_make(&work, 1, 8);
    CHECK(kiln_open(&session, &model, &work.config) == KILN_OK);

    work.mask_shape[1] = 1;
    work.y_shape[1] = 9;
    CHECK(kiln_plan(&model, work.inputs, &plan, NULL) == KILN_OK);
    CHECK(plan.dims[0] == 1 && plan.dims[1] == 8 && plan.dims[2] == 1 && plan.dims[3] == 9);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(session.frame.dims[2] == 1 && session.frame.dims[3] == 9);
    const int64_t dims[2] = {2, 24};
    CHECK(kiln_plan_dims(&model, dims, &plan, NULL) == KILN_OK);
    CHECK(plan.dims[2] == 3 && plan.dims[3] == 26);
    int64_t shape[2];
    CHECK(kiln_tensor_shape(&output, plan.dims, shape) == (size_t)2 * 26 * 4 && shape[1] == 26);

    /* Axes that do not follow. */
    const kiln_detail *error = kiln_error(&session);
    work.mask_shape[1] = 2;
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_DIM_MISMATCH);
    CHECK(error->where == KILN_AT_INPUT && error->index == 1 && error->axis == 1);
    CHECK(error->value == 2 && error->min == 1 && error->max == 1);
    work.mask_shape[1] = 1;
    work.y_shape[1] = 8;
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_DIM_MISMATCH);
    CHECK(error->where == KILN_AT_OUTPUT && error->axis == 1);
    CHECK(error->value == 8 && error->min == 9 && error->max == 9);
    /* A free dimension out of its range is found first, and nothing is derived from it. */
    work.x_shape[1] = INT64_MAX;
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_DIM_RANGE);
    int64_t wrong[4] = {1, INT64_MAX, 5, 5};
    kiln_derive(&model, wrong);
    CHECK(wrong[2] == 0 && wrong[3] == 0);
    CHECK(workload_untouched(&work));
    workload_make(&work, 2, 16);
}

static void test_quotients(void) {
    static const int32_t values[] = {INT32_MIN + 1, -100, -8, -7, -1, 0, 1, 7, 8, 100, INT32_MAX};
    static const int32_t divisors[] = {1, 2, 7, 8, 1000, INT32_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        for (size_t j = 0; j < sizeof divisors / sizeof divisors[0]; j++) {
            const int32_t quotient = kiln_quotient(values[i], divisors[j]);
            const int32_t rest = kiln_remainder(values[i], divisors[j]);
            CHECK(rest >= 0 && rest < divisors[j]);
            CHECK((int64_t)quotient * divisors[j] + rest == values[i]);
        }
    }
}

int main(void) {
    workload_make(&work, 2, 16);
    test_derived();
    test_quotients();
    test_form();
    test_sizes();
    test_null_arrays();
    test_buckets();
    test_nearest();
    test_none_nearest();
    test_plan();
    return test_result();
}
