/* time_runs.c: time the largest vector of each bucket, by the target's monotonic clock.
 *
 *     time_runs [variant NAME] INPUTS PARAMS THREADS MILLISECONDS
 *
 * Runs each of these vectors for MILLISECONDS, AT_LEAST to AT_MOST times after one warm-up run, and
 * then step by step. Prints lines, fields separated by tabs, times in nanoseconds:
 *
 *     variant NAME                  (of the model: the one that ran)
 *     run   BUCKET  TIME
 *     place BUCKET  TIME            (on a GPU: inputs and outputs stay where its kernels use them)
 *     step  BUCKET  INDEX  TIME     (the median of STEPPED rounds or more, for a quarter as long)
 *     sizes BUCKET  SIZE...         (of the model's dimensions in that run)
 *     vector BUCKET  NUMBER         (of the one that was run)
 */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#ifdef __has_include
#if __has_include("kiln_cuda.h")
#include "kiln_cuda.h"
#define ON_GPU
#endif
#endif
#include <stdlib.h>

#define AT_LEAST        5
#define AT_MOST         2000 /* lines to send from the device */
#define STEPPED         5
#define AT_MOST_STEPPED 200

static kiln_pool pool;
static kiln_session session;

static int ascending(const void *one, const void *other) {
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Rounds of steps that fit the time: a machine with little memory is slow, and gets a short table.
 */
static size_t rounds_within(const workload *w, uint64_t nanoseconds) {
    const uint64_t began = harness_now();
    harness_must(&session, kiln_run(&session, w->input, w->output));
    const uint64_t took = harness_now() - began, fitting = nanoseconds / (took > 0 ? took : 1);
    if (fitting > AT_MOST_STEPPED)
        return AT_MOST_STEPPED;
    return fitting < STEPPED ? STEPPED : (size_t)fitting;
}

static void time_steps(const workload *w, const char *bucket, uint32_t steps,
                       uint64_t nanoseconds) {
    const size_t rounds = rounds_within(w, nanoseconds);
    uint64_t *times = array_of((size_t)steps * rounds, sizeof *times); /* [step][round] */
    uint64_t *calls = array_of(steps, sizeof *calls); /* of each step in a run: more in loops */
    for (size_t round = 0; round < rounds; round++) {
        harness_must(&session, kiln_begin(&session, w->input, w->output));
        for (uint32_t left; (left = kiln_steps_left(&session)) > 0;) {
            const uint64_t began = harness_now();
            harness_must(&session, kiln_step(&session));
            times[(size_t)(steps - left) * rounds + round] += harness_now() - began;
            calls[steps - left] += round == 0;
        }
    }
    for (uint32_t i = 0; i < steps; i++) {
        uint64_t *mine = times + (size_t)i * rounds;
        qsort(mine, rounds, sizeof *mine, ascending);
        printf("step\t%s\t%u\t%llu\t%llu\n", bucket, (unsigned)i,
               (unsigned long long)mine[rounds / 2], (unsigned long long)calls[i]);
    }
    array_free(calls);
    array_free(times);
    printf("sizes\t%s", bucket);
    for (uint32_t i = 0; i < harness_model()->dims_count; i++)
        printf("\t%lld", (long long)w->plan.dims[i]);
    printf("\n");
}

#ifdef ON_GPU
/* The tensor at `address` on the session's GPU. */
static void placed(DLTensor *tensor, void *address) {
    tensor->data = address;
    tensor->byte_offset = 0;
    tensor->device = (DLDevice){kDLCUDA, 0};
}

/* Time runs that copy nothing: the inputs are those of the last run. */
static void time_in_place(const workload *w, const char *bucket, uint64_t nanoseconds) {
    const uint32_t inputs = harness_model()->inputs_count, outputs = harness_model()->outputs_count;
    DLTensor *input = array_of(inputs, sizeof *input), *output = array_of(outputs, sizeof *output);
    for (uint32_t i = 0; i < inputs; i++) {
        input[i] = w->input[i];
        placed(&input[i], kiln_cuda_input(&session, i));
    }
    for (uint32_t i = 0; i < outputs; i++) {
        output[i] = w->output[i];
        placed(&output[i], kiln_cuda_output(&session, i));
    }
    const uint64_t end = harness_now() + nanoseconds;
    for (int count = 0; count < AT_LEAST || (count < AT_MOST && harness_now() < end); count++) {
        const uint64_t began = harness_now();
        harness_must(&session, kiln_run(&session, input, output));
        printf("place\t%s\t%llu\n", bucket, (unsigned long long)(harness_now() - began));
    }
    array_free(input);
    array_free(output);
}
#endif

static void time_workload(const workload *w, uint32_t vector, const unsigned char *params,
                          kiln_pool *threads, uint64_t nanoseconds) {
    kiln_config config = workload_config(w, params);
    config.pool = threads;
    harness_must(&session, kiln_open(&session, harness_model(), &config));
    harness_must(&session, kiln_run(&session, w->input, w->output));
    const kiln_bucket *bucket = &harness_model()->buckets[session.bucket];
    printf("variant\t%s\n", session.variant->name);
    uint64_t end = harness_now() + nanoseconds;
    for (int count = 0; count < AT_LEAST || (count < AT_MOST && harness_now() < end); count++) {
        uint64_t began = harness_now();
        harness_must(&session, kiln_run(&session, w->input, w->output));
        printf("run\t%s\t%llu\n", bucket->name, (unsigned long long)(harness_now() - began));
    }
#ifdef ON_GPU
    time_in_place(w, bucket->name, nanoseconds / 2);
#endif
    printf("vector\t%s\t%u\n", bucket->name, (unsigned)vector);
    time_steps(w, bucket->name, bucket->steps, nanoseconds / 4);
    kiln_close(&session);
}

/* Elements of all inputs. */
static uint64_t elements(const workload *w) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < harness_model()->inputs_count; i++) {
        uint64_t of_input = 1;
        for (int32_t axis = 0; axis < w->input[i].ndim; axis++)
            of_input *= (uint64_t)w->input[i].shape[axis];
        all += of_input;
    }
    return all;
}

/* chosen[bucket] becomes 1 + the number of the vector with the most elements, the first of several;
 * 0 for a bucket without a vector. A bucket with a range of sizes is slowest there, and operations
 * are counted there. */
static void choose(const char *path, uint32_t *chosen) {
    uint32_t vectors;
    uint64_t *most = array_of(harness_model()->buckets_count, sizeof *most);
    FILE *in = vectors_open(path, harness_model()->inputs_count, &vectors);
    for (uint32_t v = 0; v < vectors; v++) {
        workload w;
        workload_read(&w, in);
        const uint32_t bucket = w.plan.bucket;
        if (chosen[bucket] == 0 || elements(&w) > most[bucket]) {
            chosen[bucket] = v + 1;
            most[bucket] = elements(&w);
        }
        workload_free(&w);
    }
    fclose(in);
    array_free(most);
}

int main(int argc, char **argv) {
    uint32_t vectors;
    harness_arguments(&argc, &argv);
    if (argc != 5)
        harness_stop("time_runs INPUTS PARAMS THREADS MILLISECONDS", "usage");
    const int threads = atoi(argv[3]);
    if (threads > 1 && kiln_pool_open(&pool, threads) != KILN_OK)
        harness_stop("cannot start threads", "kiln_pool_open");
    uint32_t *chosen = array_of(harness_model()->buckets_count, sizeof *chosen);
    choose(argv[1], chosen);
    FILE *in = vectors_open(argv[1], harness_model()->inputs_count, &vectors);
    unsigned char *params = params_loaded(argv[2]);
    for (uint32_t v = 0; v < vectors; v++) {
        workload w;
        workload_read(&w, in);
        if (chosen[w.plan.bucket] == v + 1)
            time_workload(&w, v, params, threads > 1 ? &pool : NULL,
                          strtoull(argv[4], NULL, 10) * 1000000u);
        workload_free(&w);
    }
    fclose(in);
    array_free(chosen);
    if (threads > 1)
        kiln_pool_close(&pool);
    return 0;
}
