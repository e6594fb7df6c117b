/* state.c: the values that a model keeps from run to run, in memory of the caller for one session.
 */
#include "internal.h"

static void set_initial(const kiln_model *model, unsigned char *state,
                        const unsigned char *params) {
    for (uint32_t i = 0; i < model->states_count; i++) {
        const kiln_state *one = &model->states[i];
        for (size_t at = 0; at < one->bytes; at++)
            state[one->offset + at] = one->initial == SIZE_MAX ? 0 : params[one->initial + at];
    }
}

kiln_status kiln_open_state(const kiln_model *model, const kiln_config *config,
                            const unsigned char *params, kiln_detail *detail) {
    const kiln_detail shared = {
        .status = KILN_OVERLAP, .where = KILN_AT_STATE, .index = -1, .axis = -1, .value = -1};
    const uintptr_t state = (uintptr_t)config->state, arena = (uintptr_t)config->arena;
    const kiln_status status =
        kiln_check_block(config->state, config->state_bytes, model->state_bytes, model->arena_align,
                         KILN_AT_STATE, KILN_STATE_NULL, detail);
    if (status != KILN_OK)
        return status;
    if (config->arena != NULL &&
        (state < arena ? arena - state < model->state_bytes : state - arena < config->arena_bytes))
        return kiln_fail(detail, &shared);
    if ((config->flags & KILN_KEEP_STATE) == 0)
        set_initial(model, config->state, params);
    return KILN_OK;
}

kiln_status kiln_reset(kiln_session *session) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    const kiln_status status = kiln_check_open(session);
    if (status != KILN_OK)
        return status;
    kiln_cancel(session);
    (void)kiln_fail_plain(&session->detail, KILN_OK);
    set_initial(session->model, session->config.state, session->frame.params);
    return KILN_OK;
}
