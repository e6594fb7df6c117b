/* content_test.c: special steps for what an input holds, at every length and alignment. */
#include "test.h"
#include "test_model.h"

#define MOST 200

static const unsigned char zero[8] = {0};

static kiln_tensor tensor_of(uint8_t code, uint8_t bits, const int64_t *shape) {
    return (kiln_tensor){"x", {code, bits, 1}, 1, shape, 0, 0};
}

/* Every length, several offsets, every place for the one element that differs. */
static void test_filled(void) {
    static unsigned char data[MOST + 64];
    static const int64_t shape[] = {-1};
    static const unsigned char one[4] = {0, 0, 0x80, 0x3f};
    const kiln_tensor bytes = tensor_of(kDLInt, 8, shape), reals = tensor_of(kDLFloat, 32, shape);
    int64_t size = 0;
    DLTensor given = kiln_bind(&bytes, &size, data);
    const kiln_frame frame = {.inputs = &given, .dims = &size};
    for (size = 1; size <= MOST; size++) {
        unsigned char *first = data + size % 3;
        given.byte_offset = (uint64_t)(size % 3);
        CHECK(kiln_input_filled(&frame, &bytes, 0, zero));
        CHECK(!kiln_input_filled(&frame, &bytes, 0, one + 2));
        for (int64_t at = 0; at < size; at++) {
            first[at] = 0x40;
            CHECK(!kiln_input_filled(&frame, &bytes, 0, zero));
            first[at] = 0;
        }
        first[size] = 1; /* one after the end */
        CHECK(kiln_input_filled(&frame, &bytes, 0, zero));
        first[size] = 0;
    }
    given.byte_offset = 0;
    for (size = 1; size <= MOST / 4; size++) {
        for (int64_t i = 0; i < 4 * size; i++)
            data[i] = one[i % 4];
        CHECK(kiln_input_filled(&frame, &reals, 0, one));
        CHECK(!kiln_input_filled(&frame, &reals, 0, zero));
        data[4 * size - 1] = 0xbf; /* -1 */
        CHECK(!kiln_input_filled(&frame, &reals, 0, one));
    }
}

static void test_equals(void) {
    static unsigned char data[MOST], params[MOST + 16];
    static const int64_t shape[] = {-1};
    const kiln_tensor bytes = tensor_of(kDLUInt, 8, shape);
    int64_t size = 0;
    const DLTensor given = kiln_bind(&bytes, &size, data);
    const kiln_frame frame = {.inputs = &given, .params = params, .dims = &size};
    for (size_t i = 0; i < MOST; i++)
        params[16 + i] = data[i] = (unsigned char)(i * 7);
    for (size = 1; size < MOST; size++) {
        CHECK(kiln_input_equals(&frame, &bytes, 0, 16, (size_t)size));
        CHECK(!kiln_input_equals(&frame, &bytes, 0, 16, (size_t)size + 1));
        data[size - 1] ^= 1;
        CHECK(!kiln_input_equals(&frame, &bytes, 0, 16, (size_t)size));
        data[size - 1] ^= 1;
    }
}

/* A tensor without elements: its data may be null, whatever its offset. */
static void test_empty(void) {
    static const int64_t shape[] = {-1};
    const kiln_tensor reals = tensor_of(kDLFloat, 32, shape);
    int64_t size = 0;
    DLTensor given = kiln_bind(&reals, &size, NULL);
    const kiln_frame frame = {.inputs = &given, .dims = &size};
    given.byte_offset = 100;
    CHECK(!kiln_input_filled(&frame, &reals, 0, zero));
    CHECK(!kiln_input_equals(&frame, &reals, 0, 0, 0));
    CHECK(!kiln_input_equals(&frame, &reals, 0, 0, 4));
}

/* sums with a third bucket, of one step, for a mask of ones in place of bucket small. */
static uint32_t special(const kiln_frame *frame, uint32_t bucket) {
    static const unsigned char one[] = {1};
    return bucket == 0 && kiln_input_filled(frame, &sums.inputs[1], 1, one) ? 2 : bucket;
}

static void test_begin(void) {
    static workload work;
    const kiln_bucket buckets[] = {
        sums.buckets[0], sums.buckets[1], {"ones", SUMS_ARENA_SMALL, 1, NULL}};
    kiln_model model = sums;
    kiln_session session;
    kiln_plan_result plan;
    model.buckets = buckets;
    model.buckets_count = 3;
    model.special = special;
    workload_make(&work, 2, 16);
    CHECK(kiln_open(&session, &model, &work.config) == KILN_OK);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(session.bucket == 0 && kiln_steps_left(&session) == 2);
    memset(work.mask, 1, 32);
    CHECK(kiln_plan(&model, work.inputs, &plan, NULL) == KILN_OK && plan.bucket == 0);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(session.bucket == 2 && kiln_steps_left(&session) == 1);
    CHECK(workload_untouched(&work));
    work.mask[31] = 2;
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK && session.bucket == 0);
    /* Nothing is read of tensors that are refused. */
    work.inputs[1].data = NULL;
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_NULL_DATA);
    workload_make(&work, 2, 24);
    memset(work.mask, 1, sizeof work.mask);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK && session.bucket == 1);
}

int main(void) {
    test_filled();
    test_equals();
    test_empty();
    test_begin();
    return test_result();
}
