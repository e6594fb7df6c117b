/* harness.c: guarded memory and workloads for the programs that test a bundle. */
#define _POSIX_C_SOURCE 199309L
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef HARNESS_HEAP_REGION /* where malloc takes memory */
#include "machine.h"
#endif

#ifndef HARNESS_ARENA_REGION /* where the arena is, or its first part */
#define HARNESS_ARENA_REGION NULL
#endif
#ifndef GUARD_BYTES
#define GUARD_BYTES 4096u
#endif

_Noreturn void harness_stop(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(3);
}

uint64_t harness_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void harness_must(const kiln_session *session, kiln_status status) {
    if (status != KILN_OK) {
        char text[256];
        kiln_detail_text(kiln_error(session), text, sizeof text);
        harness_stop(text, kiln_status_name(status));
    }
}

void *harness_memory(const char *purpose, size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory != NULL)
        return memory;
    fprintf(stderr, "out of memory: %s needs %zu bytes", purpose, bytes);
#ifdef HARNESS_HEAP_REGION
    fprintf(stderr,
            ", and %zu of the %zu for the test's tensors are free in region '%s' "
            "(key 'memory' of the target)",
            machine_heap_free(), machine_heap_bytes(), HARNESS_HEAP_REGION);
#endif
    fprintf(stderr, "\n");
    exit(3);
}

static unsigned char guard_byte(size_t position) {
    return (unsigned char)(0xC3u ^ (position & 0xFFu));
}

static void guard(const guarded *g) {
    for (unsigned char *at = g->block; at < g->data; at++)
        *at = guard_byte((size_t)(at - g->block));
    for (unsigned char *at = g->data + g->bytes; at < g->block + g->block_bytes; at++)
        *at = guard_byte((size_t)(at - g->block));
}

guarded guarded_make(const char *purpose, size_t bytes, size_t align, size_t skew) {
    guarded g = {.placed = 0};
    g.bytes = bytes;
    g.block_bytes = bytes + 2u * GUARD_BYTES + align + skew;
    g.block = harness_memory(purpose, g.block_bytes);
    uintptr_t start = (uintptr_t)g.block + GUARD_BYTES;
    size_t past = (size_t)(start % align);
    g.data = g.block + GUARD_BYTES + (past ? align - past : 0) + skew;
    guard(&g);
    guarded_fill(&g, 0);
    return g;
}

#ifdef HARNESS_REGIONS
/* Made from the target's key `memory`; the last one has no name. */
extern const struct machine_region {
    const char *name;
    unsigned char *begin, *end;
} machine_regions[];

guarded guarded_place(const char *region, size_t bytes, size_t align) {
    for (const struct machine_region *one = machine_regions; one->name != NULL; one++) {
        guarded g = {.block = one->begin,
                     .block_bytes = (size_t)(one->end - one->begin),
                     .bytes = bytes,
                     .placed = 1};
        if (region == NULL || strcmp(region, one->name) != 0)
            continue;
        if (bytes > g.block_bytes)
            harness_stop("is too small for its part of the arena", region);
        size_t before = g.block_bytes - bytes;
        before = before < 2u * GUARD_BYTES ? before / 2u / align * align : GUARD_BYTES;
        if (g.block_bytes > bytes + before + GUARD_BYTES)
            g.block_bytes = bytes + before + GUARD_BYTES;
        g.data = g.block + before;
        guard(&g);
        guarded_fill(&g, 0);
        return g;
    }
    return guarded_make("the arena", bytes, align, 0);
}
#else
guarded guarded_place(const char *region, size_t bytes, size_t align) {
    (void)region;
    return guarded_make("the arena", bytes, align, 0);
}
#endif

void guarded_fill(const guarded *g, unsigned char fill) {
    memset(g->data, fill, g->bytes);
}

int guarded_holds(const guarded *g, unsigned char fill) {
    /* All bytes are equal when each is equal to the next. */
    return g->bytes == 0 || (g->data[0] == fill && memcmp(g->data, g->data + 1, g->bytes - 1) == 0);
}

int guarded_intact(const guarded *g) {
    const size_t begin = (size_t)(g->data - g->block);
    for (size_t i = 0; i < begin; i++)
        if (g->block[i] != guard_byte(i))
            return 0;
    for (size_t i = begin + g->bytes; i < g->block_bytes; i++)
        if (g->block[i] != guard_byte(i))
            return 0;
    return 1;
}

void guarded_free(guarded *g) {
    if (!g->placed)
        free(g->block);
    memset(g, 0, sizeof *g);
}

void tensor_make(tensor *t, size_t bytes) {
    size_t element = (t->about->dtype.bits + 7u) / 8u;
    t->memory = guarded_make(t->about->name, bytes, 64, element);
    t->view = kiln_bind(t->about, t->shape, bytes > 0 ? t->memory.data : NULL);
}

void *array_of(size_t count, size_t size) {
    void *memory = harness_memory("a table of the test", count * size);
    memset(memory, 0, count * size);
    return memory;
}

void array_free(void *memory) {
    free(memory);
}

void workload_read(workload *w, FILE *file) {
    const kiln_model *m = harness_model();
    kiln_detail detail;
    w->inputs = array_of(m->inputs_count, sizeof *w->inputs);
    w->outputs = array_of(m->outputs_count, sizeof *w->outputs);
    w->input = array_of(m->inputs_count, sizeof *w->input);
    w->output = array_of(m->outputs_count, sizeof *w->output);
    for (uint32_t i = 0; i < m->inputs_count; i++) {
        tensor_read(&w->inputs[i], &m->inputs[i], file);
        w->input[i] = w->inputs[i].view;
    }
    if (kiln_plan(m, w->input, &w->plan, &detail) != KILN_OK) {
        char text[256];
        kiln_detail_text(&detail, text, sizeof text);
        harness_stop(text, "kiln_plan");
    }
    for (uint32_t i = 0; i < m->outputs_count; i++) {
        tensor *t = &w->outputs[i];
        t->about = &m->outputs[i];
        if (t->about->rank > HARNESS_MAX_RANK)
            harness_stop("has too many axes", t->about->name);
        tensor_make(t, kiln_tensor_shape(t->about, w->plan.dims, t->shape));
        w->output[i] = t->view;
    }
    w->arena = guarded_place(HARNESS_ARENA_REGION, w->plan.arena_bytes, m->arena_align);
    if (m->regions_count > HARNESS_MAX_REGIONS)
        harness_stop("has too many regions", m->name);
    for (uint32_t i = 0; i < m->regions_count; i++) {
        w->regions[i] = guarded_place(m->regions[i].name, m->regions[i].bytes, m->arena_align);
        w->memory[i] = (kiln_memory){w->regions[i].data, w->regions[i].bytes};
    }
    w->state = guarded_make("the state", m->state_bytes, m->arena_align, 0);
    guarded_fill(&w->state, 0xEE);
}

void workload_fill(const workload *w, unsigned char fill) {
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++)
        guarded_fill(&w->outputs[i].memory, fill);
    guarded_fill(&w->arena, fill);
    for (uint32_t i = 0; i < harness_model()->regions_count; i++)
        guarded_fill(&w->regions[i], fill);
}

void workload_made(const workload *w, const kiln_session *session) {
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++) {
        tensor *t = &w->outputs[i];
        t->made = kiln_output_shape(session, i, t->made_shape);
        if (t->made > t->memory.bytes)
            harness_stop("is larger after a run than kiln_plan says", t->about->name);
        memset(t->memory.data + t->made, 0, t->memory.bytes - t->made);
    }
}

const char *workload_written(const workload *w, unsigned char fill) {
    if (!workload_intact(w))
        return "wrote beyond the ends";
    if (!guarded_holds(&w->arena, fill))
        return "wrote to the arena";
    for (uint32_t i = 0; i < harness_model()->regions_count; i++)
        if (!guarded_holds(&w->regions[i], fill))
            return "wrote to a region of the arena";
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++)
        if (!guarded_holds(&w->outputs[i].memory, fill))
            return "wrote to an output";
    return NULL;
}

const char *harness_variant;
uint32_t harness_runs = 1;

/* The value of a leading `name VALUE`, which is taken away; null where the arguments begin with
 * something else. */
static const char *taken(const char *name, int *argc, char ***argv) {
    if (*argc < 3 || strcmp((*argv)[1], name) != 0)
        return NULL;
    *argc -= 2;
    *argv += 2;
    return (*argv)[0];
}

void harness_arguments(int *argc, char ***argv) {
    harness_variant = taken("variant", argc, argv);
    const char *runs = taken("runs", argc, argv);
    if (runs != NULL && atoi(runs) > 0)
        harness_runs = (uint32_t)atoi(runs);
}

kiln_config workload_config(const workload *w, const unsigned char *image) {
    kiln_config config = {
        .arena = w->arena.data, .arena_bytes = w->arena.bytes, .variant = harness_variant};
    config.regions = w->memory;
    config.state = w->state.data;
    config.state_bytes = w->state.bytes;
    config.flags = KILN_SKIP_CHECKSUM; /* large images take long, and are checked in try_params */
    if (harness_model()->params == NULL) {
        config.params = image;
        config.params_bytes = image != NULL ? harness_params_bytes() : 0;
    }
    return config;
}

int workload_intact(const workload *w) {
    int intact = guarded_intact(&w->arena) && guarded_intact(&w->state);
    for (uint32_t i = 0; i < harness_model()->regions_count; i++)
        intact = intact && guarded_intact(&w->regions[i]);
    for (uint32_t i = 0; i < harness_model()->inputs_count; i++)
        intact = intact && guarded_intact(&w->inputs[i].memory);
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++)
        intact = intact && guarded_intact(&w->outputs[i].memory);
    return intact;
}

void workload_free(workload *w) {
    for (uint32_t i = 0; i < harness_model()->inputs_count; i++)
        guarded_free(&w->inputs[i].memory);
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++)
        guarded_free(&w->outputs[i].memory);
    guarded_free(&w->arena);
    for (uint32_t i = 0; i < harness_model()->regions_count; i++)
        guarded_free(&w->regions[i]);
    guarded_free(&w->state);
    free(w->inputs);
    free(w->outputs);
    free(w->input);
    free(w->output);
}
