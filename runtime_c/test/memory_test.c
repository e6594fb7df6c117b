/* memory_test.c: tensors at addresses that are not allowed. */
#include "test.h"
#include "test_model.h"

static workload work;
static kiln_session session;

static void expect(kiln_status status, const char *name, int32_t axis) {
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == status);
    if (status == KILN_OK) {
        CHECK(workload_right(&work));
        CHECK(kiln_error(&session)->status == KILN_OK);
    } else {
        CHECK(strcmp(kiln_error(&session)->name, name) == 0);
        CHECK(kiln_error(&session)->axis == axis);
        CHECK(kiln_error(&session)->multiple == 0 || status == KILN_BAD_ALIGNMENT);
        CHECK(workload_untouched(&work));
    }
    workload_make(&work, 2, 16);
}

static void test_strides(void) {
    int64_t strides[3] = {32, 2, 1};
    work.inputs[0].strides = strides;
    expect(KILN_OK, NULL, 0);
    for (int32_t axis = 0; axis < 3; axis++) {
        strides[axis] += 1;
        work.inputs[0].strides = strides;
        expect(KILN_BAD_STRIDES, "x", axis);
        strides[axis] -= 1;
    }
    /* An axis of size 1 is never stepped along. */
    int64_t any[2] = {-1234, 1};
    workload_make(&work, 1, 16);
    work.inputs[1].strides = any;
    expect(KILN_OK, NULL, 0);
}

static void test_addresses(void) {
    work.inputs[0].data = NULL;
    expect(KILN_NULL_DATA, "x", -1);
    work.outputs[0].data = NULL;
    expect(KILN_NULL_DATA, "y", -1);
    work.inputs[0].data = (char *)work.x + 2;
    expect(KILN_BAD_ALIGNMENT, "x", -1);
    work.outputs[0].byte_offset = 1;
    expect(KILN_BAD_ALIGNMENT, "y", -1);
    work.inputs[1].data = work.mask + 1; /* one byte an element: any address */
    work.inputs[1].byte_offset = UINT64_MAX;
    expect(KILN_BAD_OFFSET, "mask", -1);
    work.inputs[0].byte_offset = UINTPTR_MAX - (uintptr_t)work.x; /* fits, its bytes do not */
    expect(KILN_BAD_OFFSET, "x", -1);
    work.inputs[0].device.device_type = kDLCUDA;
    expect(KILN_BAD_DEVICE, "x", -1);
    work.outputs[0].device.device_type = (DLDeviceType)0;
    expect(KILN_BAD_DEVICE, "y", -1);
    /* data and offset together are an address like any other. */
    work.inputs[1].data = (void *)((uintptr_t)work.mask - 8);
    work.inputs[1].byte_offset = 8;
    expect(KILN_OK, NULL, 0);
}

static void test_overlaps(void) {
    work.outputs[0].data = work.x;
    work.y_shape[0] = 2;
    expect(KILN_OVERLAP, "y", -1);
    work.outputs[0].data = work.x + 63; /* the last element of x only */
    expect(KILN_OVERLAP, "y", -1);
    work.inputs[0].data = work.arena + SUMS_ARENA_SMALL - 4; /* the last bytes of the arena */
    expect(KILN_OVERLAP, "x", -1);
    work.outputs[0].data = work.arena;
    expect(KILN_OVERLAP, "y", -1);
    /* Inputs may share memory, also memory of the arena that this bucket does not use. */
    work.inputs[1].data = work.x;
    memset(work.x, 0, sizeof work.x);
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK);
    workload_make(&work, 2, 16);
    memset(work.arena + SUMS_ARENA_SMALL, 0, 256);
    work.inputs[0].data = work.arena + SUMS_ARENA_SMALL;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK);
    workload_make(&work, 2, 16);
}

static void test_bytes(void) {
    static const int64_t huge[] = {INT32_MAX, INT32_MAX, INT32_MAX}, empty[] = {INT32_MAX, 0},
                         edge[] = {1 << 16, 1 << 15};
    const DLDataType float64 = {kDLFloat, 64, 1}, boolean = {kDLBool, 8, 1};
    int64_t shape[3];
    CHECK(kiln_tensor_shape(&(kiln_tensor){.dtype = float64, .rank = 3, .shape = huge}, NULL,
                            shape) == SIZE_MAX);
    CHECK(shape[2] == INT32_MAX);
    CHECK(kiln_tensor_shape(&(kiln_tensor){.dtype = float64, .rank = 2, .shape = empty}, NULL,
                            NULL) == 0);
    CHECK(kiln_tensor_shape(&(kiln_tensor){.dtype = boolean, .rank = 2, .shape = edge}, NULL,
                            NULL) == (size_t)1 << 31);
    CHECK(kiln_tensor_shape(&(kiln_tensor){.dtype = float64, .rank = 0}, NULL, NULL) == 8);
    if (SIZE_MAX == UINT32_MAX)
        CHECK(kiln_tensor_shape(&(kiln_tensor){.dtype = float64, .rank = 2, .shape = edge}, NULL,
                                NULL) == SIZE_MAX);
    CHECK(kiln_tensor_shape(NULL, NULL, shape) == SIZE_MAX);
}

int main(void) {
    workload_make(&work, 2, 16);
    test_strides();
    test_addresses();
    test_overlaps();
    test_bytes();
    return test_result();
}
