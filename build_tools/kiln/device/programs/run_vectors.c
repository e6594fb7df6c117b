/* run_vectors.c: run a model on every vector of a file and write its outputs.
 *
 *     run_vectors [variant NAME] [runs NUMBER] INPUTS OUTPUTS PARAMS [check REFUSED]
 *
 * With `check` no run may change an input or touch a byte around arena and tensors, and the plan
 * functions must agree. The first vector of each bucket is run again on several threads and again
 * step by step, each time with other garbage in arena and outputs: all runs must give the same
 * bytes. Wrong arguments, and the shapes in REFUSED, a vector file without elements, are tried on
 * the first vector; wrong arenas on the first vector of each bucket.
 *
 * A model with state keeps it over NUMBER vectors that follow one another; repeated runs start from
 * the state that the first one started from.
 *
 * Prints one line for each result, fields separated by tabs:
 *     variant  NAME   (of the model: the one that ran)
 *     vector   INDEX  NANOSECONDS  BUCKET  ARENA_BYTES  RAN
 *     check    NAME   ok | failed  TEXT
 *     refused  INDEX  STATUS  FAULT  TEXT
 * BUCKET is the bucket that kiln_plan returns, RAN the one that ran: a special case of BUCKET where
 * the content of an input has one.
 * Exits with 0 unless it cannot run at all; failed checks do not change the status.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define POOL_THREADS 3 /* odd, so that work does not divide evenly */

static kiln_pool pool;

static void verdict(const char *name, uint32_t vector, const char *fault) {
    if (fault == NULL)
        printf("check\t%s, vector %u\tok\t\n", name, (unsigned)vector);
    else
        printf("check\t%s, vector %u\tfailed\t%s\n", name, (unsigned)vector, fault);
}

/* FNV-1a of all bytes of tensors: a copy of them takes memory that a small machine does not have.
 */
static uint64_t digest(const tensor *tensors, uint32_t count) {
    uint64_t value = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; i++)
        for (size_t at = 0; at < tensors[i].memory.bytes; at++)
            value = (value ^ tensors[i].memory.data[at]) * 0x100000001b3u;
    return value;
}

enum way {
    WHOLE,
    POOLED,
    STEPPED
};

static kiln_session session; /* of the latest run */

static unsigned char *before; /* the state that the latest vector's runs start from */

static uint64_t run(const workload *w, const void *params, enum way way, unsigned char garbage) {
    kiln_config config = {.arena = w->arena.data,
                          .arena_bytes = w->arena.bytes,
                          .variant = harness_variant,
                          .state = w->state.data,
                          .state_bytes = w->state.bytes,
                          .regions = w->memory};
    if (before != NULL) {
        config.flags = KILN_KEEP_STATE;
        memcpy(w->state.data, before, w->state.bytes);
    }
    if (harness_model()->params == NULL && params != NULL) {
        config.params = params;
        config.params_bytes = harness_params_bytes();
    }
    config.pool = way == POOLED ? &pool : NULL;
    workload_fill(w, garbage);
    harness_must(&session, kiln_open(&session, harness_model(), &config));
    uint64_t began = harness_now();
    if (before == NULL && way != WHOLE)
        harness_must(&session, kiln_reset(&session));
    if (way == STEPPED) {
        harness_must(&session, kiln_begin(&session, w->input, w->output));
        while (kiln_steps_left(&session) > 0)
            harness_must(&session, kiln_step(&session));
    } else {
        harness_must(&session, kiln_run(&session, w->input, w->output));
    }
    const uint64_t spent = harness_now() - began;
    workload_made(w, &session);
    kiln_close(&session);
    return spent;
}

/* w holds the vector's outputs: later runs must give the same bytes, after errors too. */
static void repeat(const workload *w, uint32_t vector, unsigned char *params, const char *refused) {
    const uint64_t first = digest(w->outputs, harness_model()->outputs_count);
    if (vector == 0) {
        check_errors(w, params);
        check_refused(w, params, refused);
    } else {
        check_arena(w, params);
    }
    run(w, params, POOLED, 0xA5);
    verdict("same bytes after errors, on several threads", vector,
            digest(w->outputs, harness_model()->outputs_count) == first ? NULL : "they differ");
    run(w, params, STEPPED, 0xFF);
    verdict("same bytes step by step", vector,
            digest(w->outputs, harness_model()->outputs_count) == first ? NULL : "they differ");
}

int main(int argc, char **argv) {
    const kiln_model *m = harness_model();
    harness_arguments(&argc, &argv);
    const int check = argc == 6 && strcmp(argv[4], "check") == 0;
    unsigned char *seen = array_of(m->buckets_count, 1);
    uint32_t vectors;
    unsigned char *kept = array_of(m->state_bytes, 1); /* what the vector before has left */
    if (argc != 4 && !check)
        harness_stop("run_vectors INPUTS OUTPUTS PARAMS [check REFUSED]", "usage");
    if (kiln_pool_open(&pool, check ? POOL_THREADS : 0) != KILN_OK)
        harness_stop("cannot start threads", "kiln_pool_open");
    FILE *in = vectors_open(argv[1], m->inputs_count, &vectors);
    FILE *out = vectors_create(argv[2], vectors, m->outputs_count);
    unsigned char *params = params_loaded(argv[3]);
    for (uint32_t v = 0; v < vectors; v++) {
        workload w;
        workload_read(&w, in);
        const uint64_t given = digest(w.inputs, m->inputs_count);
        before = v % harness_runs == 0 ? NULL : kept;
        const int first = check && !seen[w.plan.bucket];
        /* 0x7F7F... is a large number in every type: what nothing wrote is beyond any tolerance. */
        uint64_t took = run(&w, params, first ? WHOLE : POOLED, 0x7F);
        if (v == 0)
            printf("variant\t%s\n", session.variant->name);
        printf("vector\t%u\t%llu\t%s\t%llu\t%s\n", (unsigned)v, (unsigned long long)took,
               m->buckets[w.plan.bucket].name, (unsigned long long)w.plan.arena_bytes,
               m->buckets[session.bucket].name);
        for (uint32_t i = 0; i < m->outputs_count; i++)
            vectors_put(out, &w.outputs[i]);
        unsigned char *left = array_of(m->state_bytes, 1);
        memcpy(left, w.state.data, m->state_bytes);
        if (first)
            repeat(&w, v, params, argv[5]);
        seen[w.plan.bucket] = 1;
        if (check) {
            verdict("plan functions agree", v, plan_fault(&w));
            verdict("inputs unchanged", v,
                    digest(w.inputs, m->inputs_count) == given ? NULL : "they changed");
            verdict("guards around arena and tensors", v,
                    workload_intact(&w) ? NULL : "something wrote beyond the ends");
        }
        array_free(kept);
        kept = left;
        workload_free(&w);
    }
    array_free(kept);
    vectors_close(out);
    fclose(in);
    array_free(seen);
    kiln_pool_close(&pool);
    return 0;
}
