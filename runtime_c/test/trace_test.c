/* trace_test.c: runs and steps are timed into the events there are, and written as JSON. */
#include "test.h"
#include "test_model.h"

static char text[8192];
static size_t length, greatest;
static uint64_t now;

static int32_t keep(void *user, const char *part, size_t bytes) {
    if (user != NULL && --*(int *)user < 0)
        return 7;
    greatest = bytes > greatest ? bytes : greatest;
    memcpy(text + length, part, bytes);
    length += bytes;
    text[length] = '\0';
    return 0;
}

/* Each look at the clock is the time that `user` points to later than the one before. */
static uint64_t ticks(void *user) {
    now += user != NULL ? *(const uint64_t *)user : 1;
    return now;
}

static const char *label(uint32_t bucket, uint32_t step) {
    static const char *const labels[] = {"mul \"x\\\n", "sum"};
    return bucket == 1 && step < 2 ? labels[step] : NULL;
}

static kiln_trace_event events[16];
static workload work;
static kiln_session session;

static kiln_trace trace_of(uint32_t capacity, uint64_t ticks_per_second) {
    now = 1000;
    length = 0;
    kiln_trace trace = {.model = &sums,
                        .label = label,
                        .clock = ticks,
                        .events = events,
                        .capacity = capacity,
                        .ticks_per_second = ticks_per_second};
    CHECK(kiln_trace_open(&trace) == KILN_OK);
    return trace;
}

static void open_session(int64_t batch, int64_t seq) {
    workload_make(&work, batch, seq);
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
}

static void test_written(void) {
    open_session(3, 24);
    kiln_trace trace = trace_of(16, 3); /* a tick is a third of a second */
    CHECK(kiln_trace_run(&trace, &session, work.inputs, work.outputs) == KILN_OK);
    CHECK(workload_right(&work));
    CHECK(trace.count == 5 && trace.missed == 0);
    CHECK(kiln_trace_write(&trace, keep, NULL) == 0);
    CHECK(greatest <= 64);
    CHECK(
        strcmp(
            text,
            "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_name\","
            "\"args\":{\"name\":\"sums\"}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"run\",\"cat\":\"run\",\"ts\":0.000,"
            "\"dur\":1666666.666,\"args\":{\"bucket\":\"large\",\"batch\":3,\"seq\":24}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"mul \\\"x\\\\\\u000a\",\"cat\":\"step\","
            "\"ts\":666666.666,\"dur\":333333.333,\"args\":{\"bucket\":\"large\",\"index\":0}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"sum\",\"cat\":\"step\",\"ts\":1333333."
            "333,"
            "\"dur\":333333.333,\"args\":{\"bucket\":\"large\",\"index\":1}}\n"
            "],\"displayTimeUnit\":\"ms\",\"otherData\":{\"model\":\"sums\",\"missed\":0}}\n") ==
        0);
}

/* What finds no room is counted; an event that is there is whole. */
static void test_full(void) {
    open_session(1, 8);
    for (uint32_t capacity = 1; capacity <= 11; capacity++) {
        kiln_trace trace = trace_of(capacity, 1000000);
        for (int run = 0; run < 2; run++) {
            CHECK(kiln_trace_run(&trace, &session, work.inputs, work.outputs) == KILN_OK);
            CHECK(workload_right(&work));
        }
        CHECK(trace.count <= capacity);
        uint32_t runs = 0, steps = 0;
        for (uint32_t i = 0; i < trace.count; i++) {
            runs += events[i].step == KILN_TRACE_RUN;
            steps += events[i].step < 2;
        }
        CHECK(trace.count == 3 * runs + steps);
        CHECK(runs + steps + trace.missed == 6);
        CHECK((trace.missed == 0) == (capacity >= 10));
        CHECK(kiln_trace_write(&trace, keep, NULL) == 0);
        CHECK(strstr(text, "\"name\":\"sum\"") == NULL); /* the small bucket has no labels */
        length = 0;
    }
}

/* Times are right at every rate of the clock, and wherever it starts. */
static void test_rates(void) {
    static const struct {
        uint64_t rate, step;
        const char *expected;
    } cases[] = {
        {1, 1, "\"dur\":1000000.000"},
        {32768, 1, "\"dur\":30.517"},
        {168000000, 168, "\"dur\":1.000"},
        {1000000000, 1234567, "\"dur\":1234.567"},
        {UINT64_MAX, UINT64_MAX / 4, "\"dur\":249999.999"},
    };
    open_session(1, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kiln_trace trace = trace_of(16, cases[i].rate);
        now = UINT64_MAX - 3; /* the clock passes its greatest value */
        uint64_t step = cases[i].step;
        trace.user = &step;
        CHECK(kiln_trace_run(&trace, &session, work.inputs, work.outputs) == KILN_OK);
        CHECK(kiln_trace_write(&trace, keep, NULL) == 0);
        CHECK(strstr(text, cases[i].expected) != NULL);
    }
}

static void test_wrong_use(void) {
    open_session(1, 8);
    kiln_trace trace = trace_of(16, 1000);
    kiln_trace other = trace;
    other.clock = NULL;
    CHECK(kiln_trace_open(&other) == KILN_NULL_ARGUMENT);
    CHECK(kiln_trace_run(&other, &session, work.inputs, work.outputs) == KILN_OK);
    CHECK(kiln_trace_run(NULL, &session, work.inputs, work.outputs) == KILN_OK);
    other = trace;
    other.ticks_per_second = 0;
    CHECK(kiln_trace_open(&other) == KILN_NULL_ARGUMENT);
    CHECK(kiln_trace_write(&other, keep, NULL) == -1);
    other = trace;
    other.capacity = 0;
    CHECK(kiln_trace_open(&other) == KILN_NULL_ARGUMENT);
    other = trace;
    other.events = NULL;
    CHECK(kiln_trace_open(&other) == KILN_NULL_ARGUMENT);
    other = trace;
    other.model = NULL;
    CHECK(kiln_trace_open(&other) == KILN_NULL_ARGUMENT &&
          kiln_trace_open(NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_trace_write(NULL, keep, NULL) == -1 && kiln_trace_write(&trace, NULL, NULL) == -1);

    /* Refused runs and steps of no run leave no event. */
    CHECK(kiln_trace_run(&trace, NULL, work.inputs, work.outputs) == KILN_NULL_ARGUMENT);
    CHECK(kiln_trace_step(&trace, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_trace_step(&trace, &session) == KILN_NOT_RUNNING);
    work.x_shape[1] = 9;
    CHECK(kiln_trace_run(&trace, &session, work.inputs, work.outputs) == KILN_DIM_MULTIPLE);
    CHECK(trace.count == 0 && trace.missed == 0);
    CHECK(kiln_trace_write(&trace, keep, NULL) == 0);
    CHECK(strstr(text, "\"ph\":\"X\"") == NULL);

    work.x_shape[1] = 8;
    trace.label = NULL;
    CHECK(kiln_trace_run(&trace, &session, work.inputs, work.outputs) == KILN_OK);
    for (int stop = 0; stop < 8; stop++) { /* the writer's own status ends it */
        int left = stop;
        length = 0;
        CHECK(kiln_trace_write(&trace, keep, &left) == 7);
    }
}

int main(void) {
    test_written();
    test_full();
    test_rates();
    test_wrong_use();
    return test_result();
}
