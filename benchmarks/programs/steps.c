/* steps.c: the first output of a model as early as a program can have it, then the time of every
 * step.
 *
 *     steps ROUNDS THREADS PARAMS VARIANT SIZE... INPUT...
 *
 * PARAMS: params.bin, or - where they are linked in; VARIANT: the one to run, or - for the one that
 * kiln_open chooses; SIZE: one for each dynamic dimension. It prints, with times in nanoseconds:
 *     bucket NUMBER        the one that serves these sizes
 *     variant NAME         the one that runs
 *     first TIME           of CLOCK_MONOTONIC, when the first output was there
 *     rss BYTES            the most memory this process had held until then
 *     steps T0 T1 ... Tn   once a round: how long each step took
 *
 * Built with -DKILN_HEADER="resnet.h" -DKILN_MODEL=resnet and linked with the bundle's static
 * library.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include KILN_HEADER

static _Noreturn void stop(const char *what, const char *name) {
    fprintf(stderr, "steps: %s: %s\n", what, name);
    exit(3);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Pages of zeros: aligned for any model, and not resident before they are touched. */
static void *memory(size_t bytes) {
    void *pages =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        stop("no memory", "mmap");
    return pages;
}

static DLTensor tensor(const kiln_tensor *about, const int64_t *dims, const char *path) {
    int64_t *shape = memory((size_t)about->rank * sizeof *shape);
    size_t bytes = kiln_tensor_shape(about, dims, shape);
    void *data = memory(bytes);
    if (path != NULL) {
        FILE *file = fopen(path, "rb");
        if (file == NULL || fread(data, 1, bytes, file) != bytes)
            stop("cannot read", path);
        fclose(file);
    }
    return kiln_bind(about, shape, data);
}

static long long peak_rss(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    return kib * 1024;
}

int main(int count, char **words) {
    const kiln_model *model = &KILN_MODEL;
    if (count != 5 + (int)(model->dims_count + model->inputs_count))
        stop("usage", "steps ROUNDS THREADS PARAMS VARIANT SIZE... INPUT...");
    const int rounds = atoi(words[1]), threads = atoi(words[2]);

    static kiln_pool pool;
    int64_t sizes[KILN_MAX_DIMS];
    kiln_plan_result plan;
    for (uint32_t i = 0; i < model->dims_count; i++)
        sizes[i] = atoll(words[5 + i]);
    kiln_status status = kiln_plan_dims(model, sizes, &plan, NULL);
    if (status != KILN_OK)
        stop("no such sizes", kiln_status_name(status));
    char **files = words + 5 + model->dims_count;
    kiln_config config = {.arena_bytes = plan.arena_bytes};
    config.variant = strcmp(words[4], "-") != 0 ? words[4] : NULL;
    config.arena = memory(config.arena_bytes);
#ifdef MADV_HUGEPAGE
    (void)madvise(config.arena, config.arena_bytes, MADV_HUGEPAGE); /* a thousand faults fewer */
#endif
    if (threads > 1) {
        if (kiln_pool_open(&pool, threads) != KILN_OK)
            stop("cannot start threads", words[2]);
        config.pool = &pool;
    }
    if (strcmp(words[3], "-") != 0 &&
        kiln_map_params(words[3], &config.params, &config.params_bytes) != KILN_OK)
        stop("cannot map", words[3]);
    DLTensor inputs[model->inputs_count], outputs[model->outputs_count];
    for (uint32_t i = 0; i < model->inputs_count; i++)
        inputs[i] = tensor(&model->inputs[i], plan.dims, files[i]);
    for (uint32_t i = 0; i < model->outputs_count; i++)
        outputs[i] = tensor(&model->outputs[i], plan.dims, NULL);

    static kiln_session session;
    status = kiln_open(&session, model, &config);
    if (status == KILN_OK)
        status = kiln_run(&session, inputs, outputs);
    if (status != KILN_OK)
        stop("cannot run", kiln_status_name(status));
    printf("first %" PRId64 "\n", now());
    printf("rss %lld\n", peak_rss());

    const uint32_t bucket = session.bucket; /* an input's content may have chosen another one */
    const uint32_t steps = model->buckets[bucket].steps;
    printf("bucket %" PRIu32 "\n", bucket);
    printf("variant %s\n", session.variant->name);
    int64_t *times = memory(steps * sizeof *times);
    for (int round = 0; round < rounds; round++) {
        kiln_begin(&session, inputs, outputs);
        for (uint32_t step = 0; step < steps; step++) {
            const int64_t before = now();
            kiln_step(&session);
            times[step] = now() - before;
        }
        printf("steps");
        for (uint32_t step = 0; step < steps; step++)
            printf(" %" PRId64, times[step]);
        printf("\n");
    }
    if (threads > 1)
        kiln_pool_close(&pool);
    return 0;
}
