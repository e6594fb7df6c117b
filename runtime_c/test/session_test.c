/* session_test.c: opening, running, stepping, cancelling, and the arena. */
#include "test.h"
#include "test_model.h"

static workload work, other;
static kiln_session session;

static void open_it(void) {
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
}

static void test_open(void) {
    CHECK(kiln_open(NULL, &sums, &work.config) == KILN_NULL_ARGUMENT);
    memset(&session, 0xa5, sizeof session); /* any contents */
    CHECK(kiln_open(&session, NULL, &work.config) == KILN_NULL_ARGUMENT);
    CHECK(kiln_open(&session, &sums, NULL) == KILN_NULL_ARGUMENT);
    kiln_model old = sums;
    old.abi = KILN_ABI + 1;
    CHECK(kiln_open(&session, &old, &work.config) == KILN_WRONG_ABI);
    CHECK(kiln_error(&session)->value == KILN_ABI + 1 && kiln_error(&session)->min == KILN_ABI);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_NOT_OPEN);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_NOT_OPEN);
    CHECK(kiln_step(&session) == KILN_NOT_OPEN);
    CHECK(kiln_run(NULL, work.inputs, work.outputs) == KILN_NULL_ARGUMENT);
    CHECK(kiln_step(NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_steps_left(NULL) == 0);
    CHECK(kiln_error(NULL)->status == KILN_NULL_ARGUMENT);
    kiln_cancel(NULL);
    CHECK(workload_untouched(&work));
}

/* What a generated <m>_interface is: a model without buckets. No arena is large enough for it. */
static void test_interface(void) {
    kiln_plan_result plan;
    kiln_detail detail;
    const int64_t dims[] = {2, 16};
    kiln_model interface = sums;
    interface.buckets = NULL;
    interface.buckets_count = 0;
    interface.select = NULL;
    work.config.arena_bytes = SIZE_MAX;
    CHECK(kiln_open(&session, &interface, &work.config) == KILN_BAD_PLAN);
    work.config.arena_bytes = sizeof work.arena;
    CHECK(kiln_plan_dims(&interface, dims, &plan, &detail) == KILN_NO_BUCKET);
}

static void test_arena(void) {
    work.config.arena = NULL;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_ARENA_NULL);
    for (size_t shift = 1; shift < 64; shift++) {
        work.config.arena = work.arena + shift;
        CHECK(kiln_open(&session, &sums, &work.config) == KILN_ARENA_ALIGNMENT);
        CHECK(kiln_error(&session)->value == (int64_t)shift);
    }
    work.config.arena = work.arena;
    work.config.arena_bytes = SUMS_ARENA_SMALL - 1;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_ARENA_TOO_SMALL);
    CHECK(kiln_error(&session)->min == SUMS_ARENA_SMALL);

    /* Enough for the small bucket: a large run is refused before anything is written. */
    workload_make(&work, 2, 64);
    work.config.arena_bytes = SUMS_ARENA_SMALL;
    open_it();
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_ARENA_TOO_SMALL);
    CHECK(kiln_error(&session)->where == KILN_AT_ARENA);
    CHECK(kiln_error(&session)->value == SUMS_ARENA_SMALL);
    CHECK(kiln_error(&session)->min == SUMS_ARENA_LARGE);
    CHECK(workload_untouched(&work));
    workload_make(&work, 2, 16);
    work.config.arena_bytes = SUMS_ARENA_SMALL;
    open_it();
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    workload_make(&work, 2, 16);
}

static void test_steps(void) {
    open_it();
    CHECK(kiln_steps_left(&session) == 0);
    CHECK(kiln_step(&session) == KILN_NOT_RUNNING);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(workload_untouched(&work));
    CHECK(kiln_steps_left(&session) == 2);
    CHECK(kiln_step(&session) == KILN_OK);
    CHECK(kiln_steps_left(&session) == 1);
    CHECK(kiln_step(&session) == KILN_OK);
    CHECK(kiln_steps_left(&session) == 0 && workload_right(&work));
    CHECK(kiln_step(&session) == KILN_NOT_RUNNING);

    workload_make(&work, 2, 16);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    kiln_cancel(&session);
    CHECK(kiln_step(&session) == KILN_NOT_RUNNING && workload_untouched(&work));
    /* A run that fails its checks drops what was left of the one before. */
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(kiln_begin(&session, NULL, work.outputs) == KILN_NULL_ARGUMENT);
    CHECK(kiln_steps_left(&session) == 0);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    CHECK(kiln_error(&session)->status == KILN_OK);
    workload_make(&work, 2, 16);
}

static uint32_t seen;

static int32_t turns;

/* Step 0 three times, then step 1, which ends the run as if it were 7 steps long. */
static int32_t jumping(const kiln_frame *frame, uint32_t bucket, uint32_t step) {
    (void)frame, (void)bucket;
    if (step == 0)
        return ++turns < 3 ? KILN_STEP_JUMP(0) : 0;
    return KILN_STEP_JUMP(7);
}

static void test_jumps(void) {
    static const kiln_variant only = {"only", 0, jumping};
    static kiln_model looped;
    looped = sums;
    looped.variants = &only;
    CHECK(kiln_open(&session, &looped, &work.config) == KILN_OK);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(kiln_step(&session) == KILN_OK && kiln_steps_left(&session) == 2);
    CHECK(kiln_step(&session) == KILN_OK && kiln_steps_left(&session) == 2);
    CHECK(kiln_step(&session) == KILN_OK && kiln_steps_left(&session) == 1 && turns == 3);
    CHECK(kiln_step(&session) == KILN_BAD_PLAN && kiln_steps_left(&session) == 0);
    kiln_close(&session);
}

static int32_t stop_at(void *user, uint32_t step) {
    seen |= 1u << step;
    return step == *(const uint32_t *)user;
}

static void test_on_step(void) {
    uint32_t stop = 9;
    work.config.on_step = stop_at;
    work.config.user = &stop;
    open_it();
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    CHECK(seen == 3);
    stop = 1;
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_CANCELLED);
    CHECK(kiln_error(&session)->where == KILN_AT_STEP && kiln_error(&session)->index == 1);
    CHECK(kiln_steps_left(&session) == 0);
    stop = 0;
    workload_make(&work, 2, 16);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_CANCELLED);
    CHECK(workload_untouched(&work));
}

static void test_damaged_plan(void) {
    static const kiln_bucket three[] = {{"small", SUMS_ARENA_SMALL, 3, NULL},
                                        {"large", SUMS_ARENA_LARGE, 3, NULL}};
    kiln_model damaged = sums;
    damaged.buckets = three;
    CHECK(kiln_open(&session, &damaged, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_BAD_PLAN);
    CHECK(kiln_error(&session)->index == 2);
    workload_make(&work, 2, 16);
}

static int32_t library_status;
static const float *library_saw;

static kiln_status open_library(const kiln_frame *frame, kiln_detail *detail) {
    library_saw = kiln_at_params(frame, 0);
    *detail = (kiln_detail){.status = library_status == 0 ? KILN_OK : KILN_LIBRARY,
                            .name = "lib: product",
                            .index = -1,
                            .axis = -1,
                            .value = library_status};
    return detail->status;
}

static int32_t step_of_library(const kiln_frame *frame, uint32_t bucket, uint32_t number) {
    return number == 1 ? library_status : sums.variants->step(frame, bucket, number);
}

static void test_library(void) {
    kiln_model calls = sums;
    calls.open = open_library;
    const kiln_variant variant = {"only", 0, step_of_library};
    calls.variants = &variant;
    library_status = 7;
    CHECK(kiln_open(&session, &calls, &work.config) == KILN_LIBRARY);
    CHECK(library_saw != NULL && library_saw == (const void *)session.frame.params);
    CHECK(kiln_error(&session)->value == 7 && kiln_error(&session)->name != NULL);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_NOT_OPEN);
    library_status = 0;
    CHECK(kiln_open(&session, &calls, &work.config) == KILN_OK);
    library_status = 3;
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_LIBRARY);
    CHECK(kiln_error(&session)->where == KILN_AT_STEP && kiln_error(&session)->index == 1);
    CHECK(kiln_error(&session)->value == 3 && kiln_steps_left(&session) == 0);
    /* Nothing is made ready where opening fails before. */
    library_saw = NULL;
    work.config.arena_bytes = 0;
    CHECK(kiln_open(&session, &calls, &work.config) == KILN_ARENA_TOO_SMALL && library_saw == NULL);
    workload_make(&work, 2, 16);
}

/* Two sessions take turns, step by step, each with an arena of its own; then share one. */
static void test_two_sessions(void) {
    kiln_session second;
    workload_make(&other, 1, 8);
    open_it();
    CHECK(kiln_open(&second, &sums, &other.config) == KILN_OK);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(kiln_begin(&second, other.inputs, other.outputs) == KILN_OK);
    CHECK(kiln_step(&session) == KILN_OK && kiln_step(&second) == KILN_OK);
    CHECK(kiln_step(&second) == KILN_OK && kiln_step(&session) == KILN_OK);
    CHECK(workload_right(&work) && workload_right(&other));
    workload_make(&other, 1, 8);
    other.config.arena = work.arena;
    CHECK(kiln_open(&second, &sums, &other.config) == KILN_OK);
    CHECK(kiln_run(&second, other.inputs, other.outputs) == KILN_OK && workload_right(&other));
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
}

int main(void) {
    workload_make(&work, 2, 16);
    test_open();
    test_interface();
    test_arena();
    test_steps();
    test_damaged_plan();
    test_library();
    test_on_step();
    test_jumps();
    workload_make(&work, 2, 16);
    test_two_sessions();
    return test_result();
}
