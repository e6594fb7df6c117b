/* session.c: open a model, choose a bucket, run its steps.
 *
 * A run: 1. read the dimensions from the inputs and check them; 2. choose the bucket; 3. check the
 * outputs, all addresses and the arena; 4. compare the inputs' content with the special cases of
 * the plan, if it has any; 5. call the plan's step function, once for each step. Parts 1 to 4 write
 * only to the session.
 */
#include "internal.h"

kiln_status kiln_check_open(kiln_session *session) {
    if (session->model == NULL)
        return kiln_fail_plain(&session->detail, KILN_NOT_OPEN);
    return session->in_on_step ? kiln_fail_plain(&session->detail, KILN_BUSY) : KILN_OK;
}

static kiln_status check_arena(const kiln_config *config, size_t needed, size_t align,
                               kiln_detail *detail) {
    return kiln_check_block(config->arena, config->arena_bytes, needed, align, KILN_AT_ARENA,
                            KILN_ARENA_NULL, detail);
}

kiln_status kiln_check_abi(const kiln_model *model, kiln_detail *detail) {
    const kiln_detail error = {.status = KILN_WRONG_ABI,
                               .index = -1,
                               .axis = -1,
                               .value = model->abi,
                               .min = KILN_ABI,
                               .max = KILN_ABI};
    return model->abi == KILN_ABI ? KILN_OK : kiln_fail(detail, &error);
}

static bool same_text(const char *a, const char *b) {
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Set *chosen to the variant called `wanted`, or for null to the last variant that the processor
 * can run. If it can run none, the error contains the features that the first variant needs. */
static kiln_status choose_variant(const kiln_model *model, const char *wanted,
                                  const kiln_variant **chosen, kiln_detail *detail) {
    kiln_detail error = {
        .status = KILN_NO_VARIANT, .where = KILN_AT_CPU, .name = wanted, .index = -1, .axis = -1};
    const kiln_variant *variant = &model->variants[model->variants_count - 1];
    while (wanted != NULL && !same_text(variant->name, wanted)) {
        if (variant == model->variants)
            return kiln_fail(detail, &error);
        variant--;
    }
    const bool needs_none = model->variants_count == 1 && variant->cpu_features == 0;
    const uint64_t have = needs_none ? 0 : kiln_cpu_features(variant->cpu_features);
    while (wanted == NULL && variant > model->variants && (variant->cpu_features & ~have) != 0)
        variant--;
    *chosen = variant;
    error.status = KILN_CPU;
    error.value = (int64_t)(variant->cpu_features & ~have);
    error.min = (int64_t)variant->cpu_features;
    return error.value == 0 ? KILN_OK : kiln_fail(detail, &error);
}

kiln_status kiln_open(kiln_session *session, const kiln_model *model, const kiln_config *config) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    *session = (kiln_session){.model = NULL};
    (void)kiln_fail_plain(&session->detail, KILN_OK);
    if (model == NULL || config == NULL)
        return kiln_fail_plain(&session->detail, KILN_NULL_ARGUMENT);
    kiln_detail *detail = &session->detail;
    kiln_frame *frame = &session->frame;
    kiln_status status = kiln_check_abi(model, detail);
    if (status == KILN_OK)
        status = choose_variant(model, config->variant, &session->variant, detail);
    if (status != KILN_OK)
        return status;
    if (model->buckets_count == 0) /* <m>_interface */
        return kiln_fail_plain(detail, KILN_BAD_PLAN);
    size_t smallest = SIZE_MAX;
    for (uint32_t i = 0; i < model->buckets_count; i++)
        if (model->buckets[i].arena_bytes < smallest)
            smallest = model->buckets[i].arena_bytes;
    status = check_arena(config, smallest, model->arena_align, detail);
    if (status == KILN_OK)
        status = kiln_accept_params(model, config->params, config->params_bytes,
                                    config->flags & KILN_SKIP_CHECKSUM, &frame->params, detail);
    if (status == KILN_OK && model->open_regions != NULL)
        status = model->open_regions(model, config, detail);
    if (status == KILN_OK && model->open_state != NULL)
        status = model->open_state(model, config, frame->params, detail);
    if (status != KILN_OK)
        return status;
    session->config = *config;
    frame->state = config->state;
    frame->arena = config->arena;
    frame->pool = config->pool;
    frame->regions = config->regions;
    if (model->gpu != NULL)
        status = model->gpu->open(session, model);
    else if (model->open != NULL)
        status = model->open(frame, detail);
    if (status == KILN_OK)
        session->model = model;
    return status;
}

void kiln_close(kiln_session *session) {
    if (session == NULL || session->model == NULL)
        return;
    kiln_cancel(session);
    if (session->model->gpu != NULL)
        session->model->gpu->close(session);
    session->model = NULL;
}

/* Find the bucket for result->dims, and fill in the other fields of `result`. */
static kiln_status choose_bucket(const kiln_model *model, kiln_plan_result *result,
                                 kiln_detail *detail) {
    const int32_t bucket = model->select == NULL ? 0 : model->select(result->dims);
    if (bucket < 0 || (uint32_t)bucket >= model->buckets_count)
        return model->dims_count == 0 ? kiln_fail_plain(detail, KILN_BAD_PLAN)
                                      : model->dynamic->refuse(model, result->dims, detail);
    result->bucket = (uint32_t)bucket;
    result->steps = model->buckets[bucket].steps;
    result->arena_bytes = model->buckets[bucket].arena_bytes;
    return KILN_OK;
}

/* Fill in `result`, of a run with these inputs; its dimensions that the model lacks stay as they
 * are. */
static kiln_status plan_inputs(const kiln_model *model, const DLTensor *inputs,
                               kiln_plan_result *result, kiln_detail *detail) {
    kiln_status status = kiln_check_abi(model, detail);
    if (status == KILN_OK)
        status = kiln_check_inputs(model, inputs, result->dims, detail);
    return status == KILN_OK ? choose_bucket(model, result, detail) : status;
}

kiln_status kiln_plan(const kiln_model *model, const DLTensor *inputs, kiln_plan_result *result,
                      kiln_detail *detail) {
    if (model == NULL || result == NULL)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    kiln_plan_result found = {0};
    const kiln_status status = plan_inputs(model, inputs, &found, detail);
    if (status == KILN_OK)
        *result = found;
    return status;
}

kiln_status kiln_plan_dims(const kiln_model *model, const int64_t *dims, kiln_plan_result *result,
                           kiln_detail *detail) {
    if (model == NULL || result == NULL || (dims == NULL && model->dims_count > 0))
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    kiln_plan_result found = {0};
    kiln_status status = kiln_check_abi(model, detail);
    for (uint32_t i = 0; status == KILN_OK && i < model->dims_count; i++) {
        kiln_detail error = {
            .where = KILN_AT_DIM, .name = model->dims[i].name, .index = (int32_t)i, .axis = -1};
        error.status = model->dynamic->check(model, i, dims[i], &error);
        if (error.status != KILN_OK)
            return kiln_fail(detail, &error);
        found.dims[i] = dims[i];
    }
    if (status != KILN_OK)
        return status;
    if (model->dynamic != NULL)
        model->dynamic->derive(model, found.dims);
    status = choose_bucket(model, &found, detail);
    if (status == KILN_OK)
        *result = found;
    return status;
}

/* The detail of KILN_OK never has another field set, so most runs need not clear it. */
static void clear_error(kiln_session *session) {
    if (session->detail.status != KILN_OK)
        (void)kiln_fail_plain(&session->detail, KILN_OK);
}

kiln_status kiln_begin(kiln_session *session, const DLTensor *inputs, const DLTensor *outputs) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    const kiln_model *model = session->model;
    kiln_detail *detail = &session->detail;
    kiln_plan_result plan;
    kiln_status status = kiln_check_open(session);
    if (status != KILN_OK)
        return status;

    clear_error(session);
    kiln_cancel(session);
    status = plan_inputs(model, inputs, &plan, detail);
    if (status == KILN_OK)
        status = kiln_check_outputs(model, outputs, plan.dims, detail);
    if (status == KILN_OK)
        status = check_arena(&session->config, plan.arena_bytes, model->arena_align, detail);
    if (status == KILN_OK)
        status = kiln_check_memory(model, inputs, outputs, plan.dims, &session->config,
                                   plan.arena_bytes, detail);
    if (status != KILN_OK)
        return status;

    for (uint32_t i = 0; i < model->dims_count + model->derived_count; i++)
        session->dims[i] = plan.dims[i];
    session->frame.inputs = inputs;
    session->frame.outputs = outputs;
    session->frame.dims = session->dims;
    session->frame.detail = detail;
    session->bucket = plan.bucket;
    if (model->special != NULL)
        session->bucket = model->special(&session->frame, plan.bucket);
    session->steps = model->buckets[session->bucket].steps;
    if (model->gpu != NULL && (status = model->gpu->begin(session)) != KILN_OK)
        kiln_cancel(session);
    return status;
}

/* End the run: store an error at `step` with this status and value; returns the status. */
static kiln_status end_run(kiln_session *session, uint32_t step, kiln_status status,
                           int64_t value) {
    (void)kiln_fail_plain(&session->detail, status);
    session->detail.where = KILN_AT_STEP;
    session->detail.index = (int32_t)step;
    session->detail.value = value;
    kiln_cancel(session);
    return status;
}

/* Call on_step before a step. Returns KILN_CANCELLED if the run has ended: on_step returned an end,
 * cancelled the run, closed the session or opened it again. */
static kiln_status call_on_step(kiln_session *session) {
    const uint32_t step = session->step;
    session->in_on_step = 1;
    const int32_t asked = session->config.on_step(session->config.user, step);
    if (session->in_on_step == 0) /* opened again: the session belongs to this run no more */
        return KILN_CANCELLED;
    session->in_on_step = 0;
    if (asked != 0 || kiln_steps_left(session) == 0)
        return end_run(session, step, KILN_CANCELLED, 0);
    clear_error(session); /* on_step may have made calls that were refused */
    return KILN_OK;
}

kiln_status kiln_step(kiln_session *session) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    kiln_status status = kiln_check_open(session);
    if (status != KILN_OK)
        return status;
    if (kiln_steps_left(session) == 0)
        return kiln_fail_plain(&session->detail, KILN_NOT_RUNNING);
    if (session->config.on_step != NULL && (status = call_on_step(session)) != KILN_OK)
        return status;
    if (session->model->gpu != NULL) {
        status = session->model->gpu->step(session);
    } else {
        const int32_t failed =
            session->variant->step(&session->frame, session->bucket, session->step);
        const uint32_t next = (uint32_t)KILN_STEP_JUMP(0) - (uint32_t)failed;
        if (next <= session->steps) { /* no other result is as small */
            session->step = next;
            return KILN_OK;
        }
        if (failed == KILN_STEP_DETAIL)
            status = session->detail.status;
        else if (failed != 0)
            return end_run(session, session->step, failed < 0 ? KILN_BAD_PLAN : KILN_LIBRARY,
                           failed);
    }
    if (status == KILN_OK)
        session->step++;
    else
        kiln_cancel(session);
    return status;
}

kiln_status kiln_run(kiln_session *session, const DLTensor *inputs, const DLTensor *outputs) {
    kiln_status status = kiln_begin(session, inputs, outputs);
    if (status == KILN_OK && session->model->gpu != NULL && session->config.on_step == NULL) {
        status = session->model->gpu->run(session);
        kiln_cancel(session);
        return status;
    }
    while (status == KILN_OK && kiln_steps_left(session) > 0)
        status = kiln_step(session);
    return status;
}

size_t kiln_output_shape(const kiln_session *session, uint32_t index, int64_t *shape) {
    if (session == NULL || session->model == NULL || index >= session->model->outputs_count)
        return 0;
    return kiln_tensor_shape(&session->model->outputs[index], session->dims, shape);
}

uint32_t kiln_steps_left(const kiln_session *session) {
    return session == NULL ? 0 : session->steps - session->step;
}

void kiln_cancel(kiln_session *session) {
    if (session != NULL)
        session->step = session->steps = 0;
}

const kiln_detail *kiln_error(const kiln_session *session) {
    static const kiln_detail no_session = {.status = KILN_NULL_ARGUMENT, .index = -1, .axis = -1};
    return session == NULL ? &no_session : &session->detail;
}
