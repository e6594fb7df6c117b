/* indices_test.c: which index a check finds, and what it says of it. */
#include "test.h"
#include "test_model.h"

static kiln_detail detail;
static const kiln_frame frame = {.detail = &detail};

static int32_t check(const int64_t *indices, int32_t rows, int32_t stride, int32_t first,
                     int32_t size, int32_t wraps) {
    const kiln_index_check about = {"ids", 7, 1, wraps};
    return kiln_check_indices_int64(&frame, &about, indices, rows, stride, first, size);
}

int main(void) {
    static const int64_t pairs[] = {0, 9, 4, -1, -5, INT64_MIN, 2, INT64_MAX};
    static const int32_t narrow[] = {0, INT32_MIN, INT32_MAX};
    const kiln_index_check about = {"ids", 7, 1, 1};
    char text[80];
    CHECK(check(pairs, 0, 2, 0, 0, 1) == 0); /* no index, no element */
    CHECK(check(pairs, 4, 2, 0, 5, 1) == 0 && check(pairs, 2, 2, 1, 10, 1) == 0);
    CHECK(check(pairs, 4, 2, 0, 5, 0) == KILN_STEP_DETAIL && detail.value == -5);
    CHECK(detail.min == 0 && detail.max == 4);
    CHECK(check(pairs, 4, 2, 1, 10, 1) == KILN_STEP_DETAIL && detail.value == INT64_MIN);
    CHECK(check(pairs + 2, 3, 2, 1, INT32_MAX, 1) == KILN_STEP_DETAIL);
    CHECK(check(pairs, 1, 2, 0, 0, 1) == KILN_STEP_DETAIL && detail.value == 0);
    CHECK(check(pairs, 1, 2, 1, 9, 1) == KILN_STEP_DETAIL);
    CHECK(detail.status == KILN_BAD_INDEX && detail.where == KILN_AT_STEP && detail.index == 7);
    (void)kiln_detail_text(&detail, text, sizeof text);
    CHECK(strcmp(text, "ids axis 1: index 9, allowed -9..8") == 0);
    CHECK(kiln_check_indices_int32(&frame, &about, narrow, 1, 1, 0, 1) == 0);
    CHECK(kiln_check_indices_int32(&frame, &about, narrow, 1, 1, 1, INT32_MAX) == KILN_STEP_DETAIL);
    CHECK(kiln_check_indices_int32(&frame, &about, narrow, 1, 1, 2, INT32_MAX) == KILN_STEP_DETAIL);
    return test_result();
}
