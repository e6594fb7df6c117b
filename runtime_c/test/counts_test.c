/* counts_test.c: a step makes a count the size of a dimension, and refuses one above its bound. */
#include "test.h"
#include "test_model.h"

static void derive(int64_t *dims) {
    dims[3] = dims[2] + 1;
}

int main(void) {
    int64_t dims[] = {4, 5, 24, 25}; /* free, free, counted, derived */
    kiln_detail detail = {.status = KILN_OK};
    const kiln_frame frame = {.detail = &detail, .dims = dims};
    const kiln_counted about = {"boxes", 3, 2, derive}, alone = {"boxes", 3, 2, NULL};
    const int64_t counts[] = {24, 25, -1, INT64_MAX, INT64_MIN, 7, 0};
    char text[80];
    CHECK(kiln_count(&frame, &about, &counts[0], NULL) == 0 && dims[2] == 24 && dims[3] == 25);
    for (int i = 1; i < 5; i++) {
        CHECK(kiln_count(&frame, &about, &counts[i], NULL) == KILN_STEP_DETAIL);
        CHECK(detail.status == KILN_TOO_MANY && detail.value == counts[i] && detail.index == 3);
        CHECK(detail.min == 0 && detail.max == 24 && detail.axis == -1);
        CHECK(dims[2] == 24 && dims[3] == 25);
    }
    CHECK(kiln_count(&frame, &about, &counts[1], NULL) == KILN_STEP_DETAIL);
    (void)kiln_detail_text(&detail, text, sizeof text);
    CHECK(strcmp(text, "boxes: 25 elements, allowed 0..24") == 0);
    CHECK(kiln_count(&frame, &about, &counts[5], NULL) == 0 && dims[2] == 7 && dims[3] == 8);
    CHECK(kiln_count(&frame, &alone, &counts[6], NULL) == 0 && dims[2] == 0 && dims[3] == 8);
    CHECK(dims[0] == 4 && dims[1] == 5);
    return test_result();
}
