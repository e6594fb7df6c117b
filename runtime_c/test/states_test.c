/* states_test.c: every function in every state of a session, of a pool and of a traffic table, and
 * every two of them one after the other: what each returns, and that the session works afterwards.
 */
#include <stdbool.h>

#include "test.h"
#include "test_model.h"

typedef enum state {
    ZEROS,
    REFUSED,
    CLOSED,
    OPEN,
    ENDED,
    FAILED,
    CANCELLED,
    BEGUN,
    IN_RUN,
    IN_STEP,
    STATES
} state;

typedef enum call {
    CALL_OPEN,
    CALL_OPEN_REFUSED,
    CALL_CLOSE,
    CALL_RUN,
    CALL_RUN_REFUSED,
    CALL_BEGIN,
    CALL_STEP,
    CALL_STEPS_LEFT,
    CALL_CANCEL,
    CALL_ERROR,
    CALL_PLAN,
    CALL_TRAFFIC,
    CALL_POOL_CLOSE,
    CALL_POOL_OPEN,
    CALLS
} call;

/* What each call returns: a status, or a number where the function has none. */
static const struct {
    int closed, open, begun, in_on_step;
    int run; /* of the run from whose on_step it was called */
} expected[CALLS] = {
    [CALL_OPEN] = {KILN_OK, KILN_OK, KILN_OK, KILN_OK, KILN_CANCELLED},
    [CALL_OPEN_REFUSED] = {KILN_NULL_ARGUMENT, KILN_NULL_ARGUMENT, KILN_NULL_ARGUMENT,
                           KILN_NULL_ARGUMENT, KILN_CANCELLED},
    [CALL_CLOSE] = {0, 0, 0, 0, KILN_CANCELLED},
    [CALL_RUN] = {KILN_NOT_OPEN, KILN_OK, KILN_OK, KILN_BUSY, KILN_OK},
    [CALL_RUN_REFUSED] = {KILN_NOT_OPEN, KILN_NULL_ARGUMENT, KILN_NULL_ARGUMENT, KILN_BUSY,
                          KILN_OK},
    [CALL_BEGIN] = {KILN_NOT_OPEN, KILN_OK, KILN_OK, KILN_BUSY, KILN_OK},
    [CALL_STEP] = {KILN_NOT_OPEN, KILN_NOT_RUNNING, KILN_OK, KILN_BUSY, KILN_OK},
    [CALL_STEPS_LEFT] = {0, 0, 2, 2, KILN_OK},
    [CALL_CANCEL] = {0, 0, 0, 0, KILN_CANCELLED},
    [CALL_ERROR] = {0, 0, 0, KILN_OK, KILN_OK},
    [CALL_PLAN] = {KILN_OK, KILN_OK, KILN_OK, KILN_OK, KILN_OK},
    [CALL_TRAFFIC] = {0, 0, 0, 0, KILN_OK},
    [CALL_POOL_CLOSE] = {KILN_OK, KILN_OK, KILN_OK, KILN_OK, KILN_OK},
    [CALL_POOL_OPEN] = {KILN_OK, KILN_OK, KILN_OK, KILN_OK, KILN_OK},
};
/* kiln_error in each state */
static const kiln_status last_error[STATES] = {
    [REFUSED] = KILN_NULL_ARGUMENT, [FAILED] = KILN_NULL_ARGUMENT, [CANCELLED] = KILN_OK};

static workload work;
static kiln_session session;
static kiln_pool pool;
static kiln_traffic_row rows[4];
static kiln_traffic traffic;

static int make_call(call what) {
    kiln_plan_result plan;
    switch (what) {
    case CALL_OPEN:
        return (int)kiln_open(&session, &sums, &work.config);
    case CALL_OPEN_REFUSED:
        return (int)kiln_open(&session, NULL, NULL);
    case CALL_CLOSE:
        kiln_close(&session);
        return 0;
    case CALL_RUN:
        return (int)kiln_run(&session, work.inputs, work.outputs);
    case CALL_RUN_REFUSED:
        return (int)kiln_run(&session, NULL, work.outputs);
    case CALL_BEGIN:
        return (int)kiln_begin(&session, work.inputs, work.outputs);
    case CALL_STEP:
        return (int)kiln_step(&session);
    case CALL_STEPS_LEFT:
        return (int)kiln_steps_left(&session);
    case CALL_CANCEL:
        kiln_cancel(&session);
        return 0;
    case CALL_ERROR:
        return (int)kiln_error(&session)->status;
    case CALL_PLAN:
        return (int)kiln_plan(&sums, work.inputs, &plan, NULL);
    case CALL_TRAFFIC:
        kiln_traffic_count(&traffic, &session);
        return 0;
    case CALL_POOL_CLOSE:
        return (int)kiln_pool_close(&pool);
    case CALL_POOL_OPEN:
        return (int)kiln_pool_close(&pool) == KILN_OK ? (int)kiln_pool_open(&pool, 2) : -1;
    default:
        return -1;
    }
}

/* The calls that on_step makes, in the first step of a run that no on_step has begun. */
static struct {
    call calls[2];
    int count, answers[2];
    int active, depth;
} script;

static int32_t follow_script(void *user, uint32_t step) {
    (void)user;
    if (script.active && script.depth == 0 && step == 0) {
        script.depth++;
        for (int i = 0; i < script.count; i++)
            script.answers[i] = make_call(script.calls[i]);
        script.depth--;
    }
    return 0;
}

static void enter(state where) {
    workload_make(&work, 2, 16);
    work.config.pool = &pool;
    work.config.on_step = follow_script;
    memset(&session, 0, sizeof session);
    script.active = 0;
    if (where == ZEROS)
        return;
    CHECK(make_call(where == REFUSED ? CALL_OPEN_REFUSED : CALL_OPEN) ==
          (where == REFUSED ? KILN_NULL_ARGUMENT : KILN_OK));
    if (where == CLOSED)
        kiln_close(&session);
    if (where == ENDED)
        CHECK(make_call(CALL_RUN) == KILN_OK);
    if (where == FAILED)
        CHECK(make_call(CALL_RUN_REFUSED) == KILN_NULL_ARGUMENT);
    if (where == BEGUN || where == CANCELLED)
        CHECK(make_call(CALL_BEGIN) == KILN_OK);
    if (where == CANCELLED)
        kiln_cancel(&session);
}

/* Make the calls of the script in a state. Returns the status of the run whose on_step made them;
 * KILN_OK in states without such a run. */
static kiln_status follow(state where) {
    kiln_status status = KILN_OK;
    enter(where);
    if (where == IN_RUN || where == IN_STEP) {
        script.active = 1;
        if (where == IN_RUN)
            status = kiln_run(&session, work.inputs, work.outputs);
        else if ((status = kiln_begin(&session, work.inputs, work.outputs)) == KILN_OK)
            status = kiln_step(&session);
        script.active = 0;
        return status;
    }
    for (int i = 0; i < script.count; i++)
        script.answers[i] = make_call(script.calls[i]);
    return KILN_OK;
}

/* However it was left, the session can be opened and run. */
static void check_usable(void) {
    CHECK(kiln_steps_left(&session) <= 2);
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    memset(work.y, 0, sizeof work.y);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    CHECK(kiln_error(&session)->status == KILN_OK);
    kiln_close(&session);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_NOT_OPEN);
}

static int expected_answer(call what, state where) {
    if (what == CALL_ERROR)
        return (int)last_error[where];
    if (where < OPEN)
        return expected[what].closed;
    if (where < BEGUN)
        return expected[what].open;
    return where == BEGUN ? expected[what].begun : expected[what].in_on_step;
}

static void test_each_call(void) {
    script.count = 1;
    for (state where = ZEROS; where < STATES; where++) {
        for (call what = CALL_OPEN; what < CALLS; what++) {
            const int in_on_step = where == IN_RUN || where == IN_STEP;
            script.calls[0] = what;
            const kiln_status run = follow(where);
            const int before = test_failures;
            CHECK(script.answers[0] == expected_answer(what, where));
            CHECK((int)run == (in_on_step ? expected[what].run : KILN_OK));
            if (where == IN_RUN && run == KILN_OK)
                CHECK(workload_right(&work) && kiln_error(&session)->status == KILN_OK);
            if (in_on_step && run == KILN_CANCELLED)
                CHECK(workload_untouched(&work) && kiln_steps_left(&session) == 0);
            check_usable();
            if (test_failures > before)
                (void)fprintf(stderr, "    call %d in state %d: %d\n", (int)what, (int)where,
                              script.answers[0]);
        }
    }
}

static void test_each_two_calls(void) {
    script.count = 2;
    for (state where = ZEROS; where < STATES; where++) {
        for (int pair = 0; pair < CALLS * CALLS; pair++) {
            script.calls[0] = (call)(pair / CALLS);
            script.calls[1] = (call)(pair % CALLS);
            const kiln_status run = follow(where);
            CHECK(run == KILN_OK || run == KILN_CANCELLED);
            check_usable();
        }
    }
}

/* on_step opens the session again and runs it, whose on_step does the same, three deep. */
static int32_t open_and_run(void *user, uint32_t step) {
    int *depth = user;
    if (step == 0 && ++*depth < 3) {
        const int innermost = *depth == 2;
        CHECK(make_call(CALL_OPEN) == KILN_OK);
        CHECK(make_call(CALL_RUN) == (int)(innermost ? KILN_OK : KILN_CANCELLED));
    }
    return 0;
}

static void test_opened_again_by_on_step(void) {
    int depth = 0;
    enter(ZEROS);
    work.config.on_step = open_and_run;
    work.config.user = &depth;
    CHECK(make_call(CALL_OPEN) == KILN_OK);
    CHECK(make_call(CALL_RUN) == KILN_CANCELLED && depth == 3);
    CHECK(workload_right(&work)); /* the innermost run ended */
}

struct close_args {
    kiln_pool *pool;
    kiln_status *status; /* of the task that begins at 0 */
};

static void close_from_task(const void *memory, int32_t begin, int32_t end) {
    const struct close_args *args = memory;
    (void)end;
    if (begin == 0)
        *args->status = kiln_pool_close(args->pool);
}

static void test_pool(void) {
    kiln_pool other;
    kiln_status inner = KILN_CANCELLED;
    const struct close_args args = {&other, &inner};
    CHECK(kiln_pool_close(NULL) == KILN_OK);
    memset(&other, 0, sizeof other);
    CHECK(kiln_pool_close(&other) == KILN_OK && kiln_pool_threads(&other) == 1);
    memset(&other, 0xa5, sizeof other);
    const kiln_status refused = kiln_pool_open(&other, KILN_POOL_MAX_THREADS + 1);
    CHECK(refused == KILN_SYSTEM_THREADS || refused == KILN_OK); /* threads_none.c takes any */
    CHECK(kiln_pool_threads(&other) == 1);
    kiln_parallel(&other, close_from_task, &args, 2); /* in this thread: the pool is closed */
    CHECK(inner == KILN_OK);
    CHECK(kiln_pool_close(&other) == KILN_OK && kiln_pool_close(&other) == KILN_OK);
    CHECK(kiln_pool_open(&other, 2) == KILN_OK);
    const bool threads = kiln_pool_threads(&other) > 1;
    kiln_parallel(&other, close_from_task, &args, 2);
    CHECK(inner == (threads ? KILN_BUSY : KILN_OK));
    CHECK(kiln_pool_threads(&other) == (threads ? 2 : 1));
    CHECK(kiln_pool_close(&other) == KILN_OK && kiln_pool_threads(&other) == 1);
    kiln_parallel(&other, close_from_task, &args, 2);
    CHECK(inner == KILN_OK);
}

static int32_t open_while_writing(void *user, const char *text, size_t bytes) {
    (void)text, (void)bytes;
    if (user == NULL)
        CHECK(kiln_traffic_open(&traffic, NULL, rows, 4) == KILN_NULL_ARGUMENT);
    else
        CHECK(kiln_traffic_open(&traffic, &sums, rows, 4) == KILN_OK);
    kiln_traffic_count(&traffic, &session);
    return 0;
}

static void test_traffic(void) {
    kiln_traffic zeros;
    memset(&zeros, 0, sizeof zeros);
    enter(ENDED);
    kiln_traffic_count(&zeros, &session);
    kiln_close(&session);
    kiln_traffic_count(&zeros, &session);
    CHECK(kiln_traffic_write(&zeros, open_while_writing, NULL) == -1);
    memset(&zeros, 0xa5, sizeof zeros);
    CHECK(kiln_traffic_open(&zeros, NULL, NULL, 0) == KILN_NULL_ARGUMENT);
    kiln_traffic_count(&zeros, &session);
    CHECK(kiln_traffic_write(&zeros, open_while_writing, NULL) == -1);
    enter(ENDED);
    kiln_traffic_count(&traffic, &session);
    CHECK(kiln_traffic_write(&traffic, open_while_writing, &session) == 0);
    kiln_traffic_count(&traffic, &session);
    CHECK(kiln_traffic_write(&traffic, open_while_writing, NULL) == 0);
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 4) == KILN_OK);
}

static void test_other_interface(void) {
    kiln_model old = sums;
    kiln_plan_result plan;
    kiln_detail detail;
    const int64_t dims[] = {2, 16};
    old.abi = KILN_ABI + 1;
    CHECK(kiln_plan(&old, work.inputs, &plan, &detail) == KILN_WRONG_ABI);
    CHECK(kiln_plan_dims(&old, dims, &plan, &detail) == KILN_WRONG_ABI);
    CHECK(detail.value == KILN_ABI + 1 && detail.min == KILN_ABI);
}

int main(void) {
    CHECK(kiln_pool_open(&pool, 2) == KILN_OK);
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 4) == KILN_OK);
    test_pool();
    test_traffic();
    test_each_call();
    test_each_two_calls();
    test_opened_again_by_on_step();
    test_other_interface();
    CHECK(kiln_pool_close(&pool) == KILN_OK);
    return test_result();
}
