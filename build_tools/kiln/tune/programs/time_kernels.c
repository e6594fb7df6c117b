/* time_kernels.c: times or checks the subjects of a generated table, on the target.
 *
 *     time_kernels time MILLISECONDS COLD_BYTES
 *     time_kernels check OPERANDS RESULTS
 *
 * time: Each group of the table runs in rounds; in a round every subject of the group runs once. A
 * group runs for MILLISECONDS times its number of subjects, for at least FEWEST and at most MOST
 * rounds. Each round starts with another subject. Prints "time NAME NANOSECONDS", separated by
 * tabs, for every run: CPU time of this thread, to reduce the influence of other programs. Each run
 * reads its weights at another address in a shared memory of COLD_BYTES, since in a network weights
 * are no longer in the cache. Where a library keeps its own copy of weights, all of that memory is
 * read before each run of the group.
 *
 * check: Every subject runs once on the inputs and parameters in OPERANDS, one tensor after
 * another; its outputs are written to RESULTS.
 */
#define _POSIX_C_SOURCE 200809L
#include "time_kernels.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FEWEST    7
#define MOST      60
#define ALIGNMENT 64
#define PAGE      4096

static _Noreturn void stop(const char *what) {
    fprintf(stderr, "time_kernels: %s\n", what);
    exit(1);
}

static size_t rounded(size_t bytes) {
    /* Adds lines so that tensors of equal size, usually an even number of lines, are an odd number
     * of lines apart: they do not compete for the same sets of a cache. */
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + 5 * ALIGNMENT;
}

static unsigned char *memory_of(size_t bytes) {
    void *made = NULL;
    if (posix_memalign(&made, PAGE, bytes + PAGE) != 0)
        stop("not enough memory");
    return made;
}

/* Fill memory with numbers between -1 and 1, so that repeated products become neither infinite nor
 * denormal. */
static void fill(unsigned char *memory, size_t bytes) {
    uint32_t state = 1;
    for (size_t i = 0; i + sizeof(float) <= bytes; i += sizeof(float)) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(int32_t)state / 2147483648.0f;
        memcpy(memory + i, &value, sizeof value);
    }
}

typedef struct {
    unsigned char *tensors, *weights;
    size_t weights_bytes, cursor;
    unsigned char **places;
} workspace;

static size_t weights_of(const subject *s) {
    size_t found = 0;
    for (int i = 0; i < s->count; i++)
        if (s->tensors[i].kind == WEIGHTS)
            found = rounded(s->tensors[i].bytes);
    return found;
}

static workspace workspace_of(const subject *first, int count, size_t cold) {
    workspace w = {0};
    size_t most = 0, most_weights = 0;
    int most_tensors = 0;
    for (int s = 0; s < count; s++) {
        size_t bytes = 0;
        for (int i = 0; i < first[s].count; i++)
            if (first[s].tensors[i].kind != WEIGHTS)
                bytes += rounded(first[s].tensors[i].bytes);
        most = bytes > most ? bytes : most;
        most_weights = weights_of(&first[s]) > most_weights ? weights_of(&first[s]) : most_weights;
        most_tensors = first[s].count > most_tensors ? first[s].count : most_tensors;
    }
    w.weights_bytes = 2 * most_weights > cold ? 2 * most_weights : cold;
    w.tensors = memory_of(most);
    w.weights = memory_of(w.weights_bytes);
    w.places = malloc((size_t)most_tensors * sizeof *w.places);
    if (w.places == NULL)
        stop("not enough memory");
    fill(w.tensors, most);
    fill(w.weights, w.weights_bytes);
    return w;
}

static void workspace_free(workspace *w) {
    free(w->tensors);
    free(w->weights);
    free(w->places);
}

/* Set the addresses of the tensors for the next run: only the weights get a new address. */
static void lay_out(workspace *w, const subject *s) {
    const size_t weights = weights_of(s);
    size_t at = 0;
    if (w->cursor + weights > w->weights_bytes)
        w->cursor = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->tensors[i].kind == WEIGHTS) {
            w->places[i] = w->weights + w->cursor;
        } else {
            w->places[i] = w->tensors + at;
            at += rounded(s->tensors[i].bytes);
        }
    }
    w->cursor += weights;
}

/* Evict a library's own data from the cache, but not the inputs, which the layer before has just
 * written. */
static void cool(const workspace *w, const subject *s) {
    static volatile unsigned char seen;
    for (size_t at = 0; at < w->weights_bytes; at += ALIGNMENT)
        seen = w->weights[at];
    for (int i = 0; i < s->count; i++)
        for (size_t at = 0; s->tensors[i].kind == INPUT && at < s->tensors[i].bytes;
             at += ALIGNMENT)
            seen = w->places[i][at];
}

static bool open_all(workspace *w, const subject *first, int count) {
    bool found = false;
    for (int i = 0; i < count; i++) {
        if (first[i].open == NULL)
            continue;
        lay_out(w, &first[i]);
        if (first[i].open(w->places) != 0)
            stop("a library cannot make ready what it needs");
        found = true;
    }
    return found;
}

static int group_size(int first) {
    int count = 1;
    while (first + count < SUBJECTS_COUNT && SUBJECTS[first + count].group == SUBJECTS[first].group)
        count++;
    return count;
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void time_all(uint64_t each, size_t cold) {
    for (int first = 0; first < SUBJECTS_COUNT; first += group_size(first)) {
        const int count = group_size(first);
        workspace w = workspace_of(&SUBJECTS[first], count, cold);
        const bool keeps = open_all(&w, &SUBJECTS[first], count);
        uint64_t spent = 0;
        for (int round = -1; round < FEWEST || (round < MOST && spent < each * (uint64_t)count);
             round++) {
            for (int i = 0; i < count; i++) {
                const subject *s = &SUBJECTS[first + (i + round + 1) % count];
                lay_out(&w, s);
                if (keeps)
                    cool(&w, s);
                const uint64_t began = now();
                s->run(w.places);
                const uint64_t took = now() - began;
                spent += took;
                if (round >= 0) /* the first round brings code and tensors into the cache */
                    printf("time\t%s\t%llu\n", s->name, (unsigned long long)took);
            }
        }
        workspace_free(&w);
    }
}

static void check_all(const char *operands, const char *results) {
    FILE *in = fopen(operands, "rb"), *out = fopen(results, "wb");
    if (in == NULL || out == NULL)
        stop("cannot open the files");
    for (int i = 0; i < SUBJECTS_COUNT; i++) {
        const subject *s = &SUBJECTS[i];
        workspace w = workspace_of(s, 1, 0);
        lay_out(&w, s);
        for (int t = 0; t < s->count; t++)
            if (s->tensors[t].kind == INPUT || s->tensors[t].kind == WEIGHTS)
                if (fread(w.places[t], 1, s->tensors[t].bytes, in) != s->tensors[t].bytes)
                    stop("operands are missing");
        s->run(w.places);
        for (int t = 0; t < s->count; t++)
            if (s->tensors[t].kind == OUTPUT)
                if (fwrite(w.places[t], 1, s->tensors[t].bytes, out) != s->tensors[t].bytes)
                    stop("cannot write the results");
        workspace_free(&w);
    }
    fclose(in);
    if (fclose(out) != 0)
        stop("cannot write the results");
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "time") == 0)
        time_all(strtoull(argv[2], NULL, 10) * 1000000u, (size_t)strtoull(argv[3], NULL, 10));
    else if (argc == 4 && strcmp(argv[1], "check") == 0)
        check_all(argv[2], argv[3]);
    else
        stop("time MILLISECONDS COLD_BYTES | check OPERANDS RESULTS");
    return 0;
}
