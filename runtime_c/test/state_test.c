/* state_test.c: the state of a session: its memory is checked, it begins with its first values, and
 * it survives until kiln_reset.
 */
#include "test.h"
#include "test_model.h"

#define STATE_BYTES 128

static const kiln_state kept[] = {{"zeros", 0, 12, SIZE_MAX}, {"given", 64, 8, 0}};
static workload work;
static kiln_model model;
static kiln_session session;
static _Alignas(64) unsigned char state[STATE_BYTES + 64];

static void prepare(void) {
    workload_make(&work, 1, 8);
    model = sums;
    model.states = kept;
    model.states_count = 2;
    model.state_bytes = STATE_BYTES;
    model.open_state = kiln_open_state;
    memset(state, 0xEE, sizeof state);
    work.config.state = state;
    work.config.state_bytes = STATE_BYTES;
}

static void expect(kiln_status status) {
    CHECK(kiln_open(&session, &model, &work.config) == status);
    CHECK(kiln_error(&session)->status == status);
    CHECK(kiln_error(&session)->where == (status == KILN_OK ? KILN_AT_SESSION : KILN_AT_STATE));
}

/* Whether the state holds its first values, and the bytes between them are as they were. */
static int is_initial(unsigned char between) {
    static const unsigned char zeros[12];
    return memcmp(state, zeros, 12) == 0 && state[12] == between && state[63] == between &&
           memcmp(state + 64, session.frame.params, 8) == 0 && state[72] == between;
}

static void test_memory(void) {
    prepare();
    work.config.state = NULL;
    expect(KILN_STATE_NULL);
    CHECK(kiln_error(&session)->min == STATE_BYTES);
    work.config.state = state + 4;
    expect(KILN_STATE_ALIGNMENT);
    work.config.state = state;
    work.config.state_bytes = STATE_BYTES - 1;
    expect(KILN_STATE_TOO_SMALL);
    CHECK(kiln_error(&session)->value == STATE_BYTES - 1);
    prepare();
    work.config.state = work.arena;
    expect(KILN_OVERLAP);
    work.config.state = work.arena + sizeof work.arena - 64;
    expect(KILN_OVERLAP);
    model.states_count = 0; /* a model without state asks for none */
    model.state_bytes = 0;
    model.open_state = NULL;
    work.config.state = NULL;
    expect(KILN_OK);
    CHECK(kiln_reset(&session) == KILN_OK);
}

static void test_first_values(void) {
    prepare();
    expect(KILN_OK);
    CHECK(session.frame.state == state);
    CHECK(is_initial(0xEE));
    memset(state, 0x11, sizeof state);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(state[0] == 0x11 && state[64] == 0x11);
    CHECK(kiln_reset(&session) == KILN_OK);
    CHECK(is_initial(0x11));
    memset(state, 0x22, sizeof state);
    work.config.flags = KILN_KEEP_STATE;
    expect(KILN_OK);
    CHECK(state[0] == 0x22 && state[64] == 0x22);
}

static void test_overlap(void) {
    prepare();
    expect(KILN_OK);
    work.outputs[0].data = state + STATE_BYTES - 4;
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OVERLAP);
    prepare();
    work.inputs[1].data = state;
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OVERLAP);
    CHECK(kiln_error(&session)->where == KILN_AT_INPUT && kiln_error(&session)->value == -1);
}

static kiln_status seen;

static int32_t reset_in_step(void *user, uint32_t step) {
    (void)user, (void)step;
    seen = kiln_reset(&session);
    return 0;
}

static void test_states_of_a_session(void) {
    prepare();
    CHECK(kiln_reset(NULL) == KILN_NULL_ARGUMENT);
    memset(&session, 0, sizeof session);
    CHECK(kiln_reset(&session) == KILN_NOT_OPEN);
    work.config.on_step = reset_in_step;
    expect(KILN_OK);
    memset(state, 0x33, sizeof state);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(seen == KILN_BUSY && state[0] == 0x33);
    work.config.on_step = NULL;
    work.config.flags = KILN_KEEP_STATE;
    expect(KILN_OK);
    CHECK(kiln_begin(&session, work.inputs, work.outputs) == KILN_OK);
    CHECK(kiln_reset(&session) == KILN_OK && is_initial(0x33));
    CHECK(kiln_steps_left(&session) == 0 && kiln_step(&session) == KILN_NOT_RUNNING);
}

int main(void) {
    test_memory();
    test_first_values();
    test_overlap();
    test_states_of_a_session();
    return test_result();
}
