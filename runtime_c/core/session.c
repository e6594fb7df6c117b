/* session.c: open a model, choose a bucket, run its steps.
 *
 * A run is: 1. read the dimensions from the inputs and check them; 2. choose the bucket; 3. check
 * outputs, places and arena; 4. look at the inputs' content, where the plan has special steps for
 * it; 5. call the plan's step function, once for each step. 1 to 4 write to the session only.
 */
#include "internal.h"

static const kiln_detail no_error = {.index = -1, .axis = -1};

static kiln_status fail_plain(kiln_detail *detail, kiln_status status) {
    kiln_detail error = no_error;
    error.status = status;
    return kiln_fail(detail, &error);
}

static kiln_status check_arena(const kiln_config *config, size_t needed, size_t align,
                               kiln_detail *detail) {
    return kiln_check_block(config->arena, config->arena_bytes, needed, align, KILN_AT_ARENA,
                            KILN_ARENA_NULL, detail);
}

kiln_status kiln_check_abi(const kiln_model *model, kiln_detail *detail) {
    kiln_detail error = no_error;
    error.status = KILN_WRONG_ABI;
    error.value = model->abi;
    error.min = error.max = KILN_ABI;
    return model->abi == KILN_ABI ? KILN_OK : kiln_fail(detail, &error);
}

static bool same_text(const char *a, const char *b) {
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

/* *chosen: the variant called `wanted`, or for null the last that the processor can run. Where it
 * can run none, the error says what the first one needs. */
static kiln_status choose_variant(const kiln_model *model, const char *wanted,
                                  const kiln_variant **chosen, kiln_detail *detail) {
    kiln_detail error = no_error;
    const kiln_variant *variant = &model->variants[model->variants_count - 1];
    error.where = KILN_AT_CPU;
    error.status = KILN_NO_VARIANT;
    error.name = wanted;
    while (wanted != NULL && !same_text(variant->name, wanted)) {
        if (variant == model->variants)
            return kiln_fail(detail, &error);
        variant--;
    }
    const bool needs_none = model->variants_count == 1 && variant->cpu_features == 0;
    const uint64_t have = needs_none ? 0 : kiln_cpu_features();
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
    *session = (kiln_session){.detail = no_error};
    if (model == NULL || config == NULL)
        return fail_plain(&session->detail, KILN_NULL_ARGUMENT);
    kiln_status status = kiln_check_abi(model, &session->detail);
    if (status == KILN_OK)
        status = choose_variant(model, config->variant, &session->variant, &session->detail);
    if (status != KILN_OK)
        return status;
    size_t smallest = model->buckets[0].arena_bytes;
    for (uint32_t i = 1; i < model->buckets_count; i++)
        if (model->buckets[i].arena_bytes < smallest)
            smallest = model->buckets[i].arena_bytes;
    status = check_arena(config, smallest, model->arena_align, &session->detail);
    if (status != KILN_OK)
        return status;
    const unsigned char *payload;
    status = kiln_accept_params(model, config->params, config->params_bytes,
                                config->flags & KILN_SKIP_CHECKSUM, &payload, &session->detail);
    if (status != KILN_OK)
        return status;
    if (model->open_state != NULL)
        status = model->open_state(model, config, payload, &session->detail);
    if (status != KILN_OK)
        return status;
    session->config = *config;
    session->frame.state = config->state;
    session->frame.arena = config->arena;
    session->frame.params = payload;
    session->frame.pool = config->pool;
    if (model->gpu != NULL)
        status = model->gpu->open(session, model);
    else if (model->open != NULL)
        status = model->open(&session->frame, &session->detail);
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

/* Whether a bucket's box, if it has one, takes these sizes, that of one dimension aside. */
static bool takes_others(const kiln_model *model, const kiln_bucket *bucket, const int64_t *dims,
                         uint32_t aside) {
    const int32_t *box = bucket->box;
    for (uint32_t i = 0; box != NULL && i < model->dims_count; i++) {
        const int32_t size = (int32_t)dims[i]; /* in its range, which ends at INT32_MAX */
        if (i != aside && (size < box[2 * i] || size > box[2 * i + 1]))
            return false;
    }
    return box != NULL;
}

/* *below and *above: the nearest sizes of dimension `at` that buckets take, -1 where there is none;
 * only those of buckets that take the other sizes as they are, unless it is to blame `alone`. False
 * where a bucket takes the size itself. */
static bool find_nearest(const kiln_model *model, const int64_t *dims, uint32_t at, bool alone,
                         int32_t *below, int32_t *above) {
    const int32_t size = (int32_t)dims[at];
    *below = *above = -1;
    for (uint32_t i = 0; i < model->buckets_count; i++) {
        const kiln_bucket *bucket = &model->buckets[i];
        if (bucket->box == NULL || !(alone || takes_others(model, bucket, dims, at)))
            continue;
        const int32_t least = bucket->box[2 * at], most = bucket->box[2 * at + 1];
        if (least <= size && size <= most)
            return false;
        if (most < size && most > *below)
            *below = most;
        if (least > size && (*above < 0 || least < *above))
            *above = least;
    }
    return true;
}

/* No bucket holds these sizes: blame the first dimension of which no bucket takes the size, or else
 * dimension 0 beside the others as they are, and say which sizes of it would do. */
static kiln_status no_bucket(const kiln_model *model, const int64_t *dims, kiln_detail *detail) {
    kiln_detail error = {.status = KILN_NO_BUCKET, .where = KILN_AT_DIM, .index = -1, .axis = -1};
    int32_t below, above;
    uint32_t at = 0;
    if (model->dims_count == 0)
        return kiln_fail(detail, &error);
    while (at < model->dims_count && !find_nearest(model, dims, at, true, &below, &above))
        at++;
    if (at == model->dims_count) {
        at = 0;
        (void)find_nearest(model, dims, at, false, &below, &above);
    }
    error.index = (int32_t)at;
    error.name = model->dims[at].name;
    error.value = dims[at];
    error.min = below;
    error.max = above;
    return kiln_fail(detail, &error);
}

/* result->dims are known: find the bucket and fill in the rest. */
static kiln_status choose_bucket(const kiln_model *model, kiln_plan_result *result,
                                 kiln_detail *detail) {
    const int32_t bucket = model->select == NULL ? 0 : model->select(result->dims);
    if (bucket < 0 || (uint32_t)bucket >= model->buckets_count)
        return no_bucket(model, result->dims, detail);
    result->bucket = (uint32_t)bucket;
    result->steps = model->buckets[bucket].steps;
    result->arena_bytes = model->buckets[bucket].arena_bytes;
    return KILN_OK;
}

kiln_status kiln_plan(const kiln_model *model, const DLTensor *inputs, kiln_plan_result *result,
                      kiln_detail *detail) {
    if (model == NULL || result == NULL)
        return fail_plain(detail, KILN_NULL_ARGUMENT);
    kiln_plan_result found = {0};
    kiln_status status = kiln_check_abi(model, detail);
    if (status == KILN_OK)
        status = kiln_check_inputs(model, inputs, found.dims, detail);
    if (status == KILN_OK)
        status = choose_bucket(model, &found, detail);
    if (status == KILN_OK)
        *result = found;
    return status;
}

kiln_status kiln_plan_dims(const kiln_model *model, const int64_t *dims, kiln_plan_result *result,
                           kiln_detail *detail) {
    if (model == NULL || result == NULL || (dims == NULL && model->dims_count > 0))
        return fail_plain(detail, KILN_NULL_ARGUMENT);
    kiln_plan_result found = {0};
    kiln_status status = kiln_check_abi(model, detail);
    for (uint32_t i = 0; status == KILN_OK && i < model->dims_count; i++) {
        kiln_detail error = no_error;
        error.where = KILN_AT_DIM;
        error.index = (int32_t)i;
        error.name = model->dims[i].name;
        status = kiln_check_dim(model, i, dims[i], &error, detail);
        found.dims[i] = dims[i];
    }
    if (status != KILN_OK)
        return status;
    kiln_derive(model, found.dims);
    status = choose_bucket(model, &found, detail);
    if (status == KILN_OK)
        *result = found;
    return status;
}

kiln_status kiln_begin(kiln_session *session, const DLTensor *inputs, const DLTensor *outputs) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    if (session->model == NULL)
        return fail_plain(&session->detail, KILN_NOT_OPEN);
    if (session->in_on_step)
        return fail_plain(&session->detail, KILN_BUSY);
    const kiln_model *model = session->model;
    kiln_detail *detail = &session->detail;
    kiln_plan_result plan;

    *detail = no_error;
    kiln_cancel(session);
    kiln_status status = kiln_plan(model, inputs, &plan, detail);
    if (status == KILN_OK)
        status = kiln_check_outputs(model, outputs, plan.dims, detail);
    if (status == KILN_OK)
        status = check_arena(&session->config, plan.arena_bytes, model->arena_align, detail);
    if (status == KILN_OK)
        status = kiln_check_memory(model, inputs, outputs, plan.dims, &session->config,
                                   plan.arena_bytes, detail);
    if (status != KILN_OK)
        return status;

    for (uint32_t i = 0; i < KILN_MAX_DIMS; i++)
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

/* Call on_step before a step. KILN_CANCELLED where the run is over: on_step asked for it, or has
 * cancelled the run, closed the session or opened it again. */
static kiln_status call_on_step(kiln_session *session) {
    kiln_detail error = no_error;
    error.status = KILN_CANCELLED;
    error.where = KILN_AT_STEP;
    error.index = (int32_t)session->step;
    session->in_on_step = 1;
    const int32_t asked = session->config.on_step(session->config.user, session->step);
    if (session->in_on_step == 0) /* opened again: the session belongs to this run no more */
        return KILN_CANCELLED;
    session->in_on_step = 0;
    if (asked == 0 && kiln_steps_left(session) > 0) {
        session->detail = no_error; /* on_step may have made calls that were refused */
        return KILN_OK;
    }
    kiln_cancel(session);
    return kiln_fail(&session->detail, &error);
}

kiln_status kiln_step(kiln_session *session) {
    if (session == NULL)
        return KILN_NULL_ARGUMENT;
    if (session->model == NULL)
        return fail_plain(&session->detail, KILN_NOT_OPEN);
    if (session->in_on_step)
        return fail_plain(&session->detail, KILN_BUSY);
    if (kiln_steps_left(session) == 0)
        return fail_plain(&session->detail, KILN_NOT_RUNNING);
    kiln_detail error = no_error;
    error.where = KILN_AT_STEP;
    error.index = (int32_t)session->step;
    error.status = KILN_OK;
    kiln_status status = KILN_OK;
    if (session->config.on_step != NULL && (status = call_on_step(session)) != KILN_OK)
        return status;
    if (session->model->gpu != NULL) {
        status = session->model->gpu->step(session);
        if (status != KILN_OK) {
            kiln_cancel(session);
            return status;
        }
    } else {
        error.value = session->variant->step(&session->frame, session->bucket, session->step);
        if (error.value == KILN_STEP_DETAIL)
            error = session->detail;
        else if (error.value != 0)
            error.status = error.value < 0 ? KILN_BAD_PLAN : KILN_LIBRARY;
    }
    if (error.status != KILN_OK) {
        kiln_cancel(session);
        return kiln_fail(&session->detail, &error);
    }
    session->step++;
    return KILN_OK;
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
