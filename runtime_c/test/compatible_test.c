/* compatible_test.c: what a model must share with the one that a program was built with. */
#include "test.h"
#include "test_model.h"

static kiln_detail detail;
static char text[120];

/* The status of comparing `model` with sums; the line of its error is written to `text`. */
static kiln_status with(const kiln_model *model) {
    const kiln_status status = kiln_compatible(model, &sums, &detail);
    (void)kiln_detail_text(&detail, text, sizeof text);
    return detail.status == status ? status : KILN_OK;
}

static kiln_status with_input(const kiln_tensor *first) {
    const kiln_tensor inputs[] = {*first, sums.inputs[1]};
    kiln_model model = sums;
    model.inputs = inputs;
    return with(&model);
}

static kiln_status with_dims(kiln_dim seq) {
    const kiln_dim dims[] = {sums.dims[0], seq};
    kiln_model model = sums;
    model.dims = dims;
    return with(&model);
}

static void next_size(int64_t *dims) {
    dims[2] = dims[1] + 1;
}

static void half(int64_t *dims) {
    dims[2] = dims[1] / 2 + 5;
}

int main(void) {
    kiln_model model = sums;
    CHECK(with(&sums) == KILN_OK && kiln_compatible(&sums, &sums, NULL) == KILN_OK);
    CHECK(kiln_compatible(NULL, &sums, &detail) == KILN_NULL_ARGUMENT);
    CHECK(kiln_compatible(&sums, NULL, NULL) == KILN_NULL_ARGUMENT);

    model.abi = KILN_ABI + 1;
    CHECK(with(&model) == KILN_WRONG_ABI && detail.value == KILN_ABI + 1);
    model = sums;
    model.name = "another"; /* the name is not part of the interface */
    model.buckets_count = 1;
    CHECK(with(&model) == KILN_OK);
    model.inputs_count = 1;
    CHECK(with(&model) == KILN_OTHER_INTERFACE);
    CHECK(strcmp(text, "input: 1, the program was built for 2") == 0);
    model = sums;
    model.outputs_count = 0;
    CHECK(with(&model) == KILN_OTHER_INTERFACE && detail.where == KILN_AT_OUTPUT);
    model = sums;
    model.dims_count = 1;
    CHECK(with(&model) == KILN_OTHER_INTERFACE && detail.where == KILN_AT_DIM);

    kiln_tensor first = sums.inputs[0];
    first.name = "x2";
    CHECK(with_input(&first) == KILN_OTHER_NAME);
    CHECK(strcmp(text, "x: missing at this place, the program was built for it") == 0);
    first = sums.inputs[0];
    first.dtype.bits = 16;
    CHECK(with_input(&first) == KILN_BAD_DTYPE);
    CHECK(strcmp(text, "x: float16, allowed float32") == 0);
    first = sums.inputs[0];
    first.rank = 2;
    CHECK(with_input(&first) == KILN_BAD_RANK && detail.value == 2 && detail.min == 3);
    first = sums.inputs[0];
    first.scale = 0.25f;
    CHECK(with_input(&first) == KILN_OTHER_SCALE && detail.index == 0);
    const int64_t wide[] = {-1, -2, 3}, swapped[] = {-2, -1, 2};
    first = sums.inputs[0];
    first.shape = wide;
    CHECK(with_input(&first) == KILN_BAD_SHAPE);
    CHECK(strcmp(text, "x axis 2: 3, allowed 2") == 0);
    first.shape = swapped;
    CHECK(with_input(&first) == KILN_OTHER_INTERFACE && detail.axis == 0);

    CHECK(with_dims((kiln_dim){"seq", 4, 128, 4}) == KILN_OK); /* more than the program needs */
    CHECK(with_dims((kiln_dim){"sequence", 8, 64, 8}) == KILN_OTHER_NAME);
    CHECK(with_dims((kiln_dim){"seq", 16, 64, 8}) == KILN_DIM_RANGE);
    CHECK(strcmp(text, "seq: 16, allowed 0..8") == 0);
    CHECK(with_dims((kiln_dim){"seq", 8, 56, 8}) == KILN_DIM_RANGE && detail.value == 56);
    CHECK(with_dims((kiln_dim){"seq", 8, 64, 16}) == KILN_DIM_MULTIPLE);

    kiln_model built = sums;
    model = sums;
    model.derived_count = built.derived_count = 1;
    model.derive = built.derive = next_size;
    CHECK(kiln_compatible(&model, &built, &detail) == KILN_OK);
    model.derive = half; /* the same at 8, not at 64 */
    CHECK(kiln_compatible(&model, &built, &detail) == KILN_BAD_SHAPE && detail.index == 2);
    CHECK(detail.value == 37 && detail.min == 65);
    return test_result();
}
