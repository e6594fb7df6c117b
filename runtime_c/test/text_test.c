/* text_test.c: what an error reads like. */
#include "test.h"

#include "kiln.h"

static void expect(kiln_detail detail, const char *expected) {
    char text[160];
    const size_t length = kiln_detail_text(&detail, text, sizeof text);
    if (strcmp(text, expected) != 0)
        (void)fprintf(stderr, "got: %s\nnot: %s\n", text, expected);
    CHECK(strcmp(text, expected) == 0);
    CHECK(length == strlen(expected));
    /* Every smaller buffer: the text is cut and ended, and nothing is written after it. */
    for (size_t size = 0; size <= length; size++) {
        memset(text, '~', sizeof text);
        CHECK(kiln_detail_text(&detail, text, size) == length);
        CHECK(text[size] == '~');
        CHECK(size == 0 || (text[size - 1] == '\0' && memcmp(text, expected, size - 1) == 0));
    }
    CHECK(kiln_detail_text(&detail, NULL, 100) == length);
}

#define INT8    (kDLInt | 8 << 8 | 1 << 16)
#define FLOAT16 (kDLFloat | 16 << 8 | 1 << 16)

static void test_lines(void) {
    expect((kiln_detail){KILN_DIM_RANGE, KILN_AT_INPUT, "input_ids", 0, 1, 65, 1, 64, 1},
           "input_ids axis 1: 65, allowed 1..64");
    expect((kiln_detail){KILN_DIM_MULTIPLE, KILN_AT_INPUT, "x", 0, 1, 12, 8, 64, 8},
           "x axis 1: 12, allowed multiples of 8 in 8..64");
    expect((kiln_detail){KILN_BAD_SHAPE, KILN_AT_OUTPUT, NULL, 2, 0, INT64_MIN, 7, 7, 0},
           "output 2 axis 0: -9223372036854775808, allowed 7");
    expect((kiln_detail){KILN_DIM_MISMATCH, KILN_AT_INPUT, "mask", 1, 1, 8, 16, 16, 0},
           "mask axis 1: 8, allowed 16 to agree with other axes");
    expect((kiln_detail){KILN_NULL_ARGUMENT, KILN_AT_SESSION, NULL, -1, -1, 0, 0, 0, 0},
           "argument: null where a pointer is needed");
    expect((kiln_detail){KILN_NULL_ARGUMENT, KILN_AT_INPUT, NULL, -1, -1, 0, 0, 0, 0},
           "input: null where a pointer is needed");
    expect((kiln_detail){KILN_NO_BUCKET, KILN_AT_DIM, "seq", 0, -1, 20, 16, 32, 0},
           "seq: 20, served by no bucket; nearest sizes served: 16, 32");
    expect((kiln_detail){KILN_NO_BUCKET, KILN_AT_DIM, "seq", 0, -1, 20, -1, 32, 0},
           "seq: 20, served by no bucket; nearest size served: 32");
    expect((kiln_detail){KILN_NO_BUCKET, KILN_AT_DIM, "seq", 0, -1, 20, 0, -1, 0},
           "seq: 20, served by no bucket; nearest size served: 0");
    expect((kiln_detail){KILN_NO_BUCKET, KILN_AT_DIM, "seq", 0, -1, 20, -1, -1, 0},
           "seq: 20, served by no bucket with the sizes of the other dimensions");
    expect((kiln_detail){KILN_ARENA_TOO_SMALL, KILN_AT_ARENA, NULL, -1, -1, 4096, 4160, 0, 0},
           "arena: 4160 bytes needed, 4096 given");
    expect((kiln_detail){KILN_ARENA_NULL, KILN_AT_ARENA, NULL, -1, -1, 0, INT64_MAX, 0, 0},
           "arena: null, 9223372036854775807 bytes needed");
    expect((kiln_detail){KILN_LIBRARY, KILN_AT_SESSION, "xnnpack: dense", -1, -1, 6, 0, 0, 0},
           "xnnpack: dense: error 6 of the library that computes it");
    expect((kiln_detail){KILN_LIBRARY_ABSENT, KILN_AT_GPU, "libcublasLt.so.13: no such file", 0, -1,
                         -1, 0, 0, 0},
           "libcublasLt.so.13: no such file: a library that the model calls cannot be loaded");
    expect((kiln_detail){KILN_LIBRARY, KILN_AT_STEP, NULL, 3, -1, 6, 0, 0, 0},
           "step 3: error 6 of the library that computes it");
    expect((kiln_detail){KILN_BAD_ALIGNMENT, KILN_AT_INPUT, "x", 0, -1, 2, 0, 0, 4},
           "x: address is 2 bytes past a multiple of 4");
    expect((kiln_detail){KILN_BAD_DTYPE, KILN_AT_INPUT, "x", 0, -1, FLOAT16, INT8, 0, 0},
           "x: float16, allowed int8");
    expect((kiln_detail){KILN_BAD_DTYPE, KILN_AT_INPUT, "x", 0, -1, kDLBool | 8 << 8 | 1 << 16,
                         kDLFloat | 32 << 8 | 4 << 16, 0, 0},
           "x: bool, allowed float32x4");
    expect(
        (kiln_detail){KILN_BAD_DTYPE, KILN_AT_INPUT, "x", 0, -1, 17 | 4 << 8 | 1 << 16, INT8, 0, 0},
        "x: dtype code 17 bits 4, allowed int8");
    expect((kiln_detail){KILN_BAD_STRIDES, KILN_AT_INPUT, "x", 0, 1, 3, 2, 2, 0},
           "x axis 1: stride 3, allowed 2 (compact, row-major)");
    expect((kiln_detail){KILN_TOO_MANY, KILN_AT_STEP, "boxes", 3, -1, 30, 0, 24, 0},
           "boxes: 30 elements, allowed 0..24");
    expect((kiln_detail){KILN_PARAMS_OTHER_BUILD, KILN_AT_PARAMS, NULL, -1, -1, 0, 0, 0, 0},
           "params: made by another build than the code");
    expect((kiln_detail){KILN_OK, KILN_AT_SESSION, NULL, -1, -1, 0, 0, 0, 0}, "session: no error");
    expect((kiln_detail){(kiln_status)999, (kiln_where)999, NULL, -1, -1, 0, 0, 0, 0},
           "unknown place: unknown status");
}

/* Every status has a name of its own and a line that ends cleanly. */
static void test_all(void) {
    int known = 0;
    for (int status = 0; status < 100; status++) {
        const kiln_detail detail = {(kiln_status)status, KILN_AT_DIM, "n", 0, 0, 1, 2, 3, 4};
        const char *name = kiln_status_name((kiln_status)status);
        char text[160];
        CHECK(kiln_detail_text(&detail, text, sizeof text) < sizeof text);
        CHECK(strchr(text, '%') == NULL);
        const int has_name = strncmp(name, "KILN_", 5) == 0;
        CHECK(has_name == (strstr(text, "unknown status") == NULL));
        known += has_name;
    }
    CHECK(known == 55);
    CHECK(strcmp(kiln_status_name(KILN_DIM_RANGE), "KILN_DIM_RANGE") == 0);
    CHECK(kiln_detail_text(NULL, NULL, 0) > 0);
}

int main(void) {
    test_lines();
    test_all();
    return test_result();
}
