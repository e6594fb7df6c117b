/* time_gpu.c: time the candidates of a list on a GPU; it needs the driver alone.
 *
 *     time_gpu LIST MILLISECONDS COLD_BYTES [FIRST]
 *
 * LIST is a text file, one word after the other, in records:
 *
 *     list DIGEST                        printed again, to tell results of different lists apart
 *     subject NAME TENSORS LAUNCHES      a candidate; then its tensors and its launches
 *     tensor BYTES WEIGHTS               WEIGHTS 1: read at another address in every repetition
 *     launch FILE ENTRY GX GY GZ BX BY BZ SHARED EARLY COUNT ARGUMENT...
 *                                        FILE is an image next to LIST; SHARED: dynamic bytes;
 * EARLY 1: the kernel waits itself for the launch before it (sm_90); an ARGUMENT is tINDEX, a
 * tensor, or nVALUE, a number of 64 bits
 *
 * A candidate's launches are captured in a CUDA graph, again and again, as steps of a network are.
 * The graph runs for MILLISECONDS; weights are at as many places as fit in COLD_BYTES, since those
 * of a network do not stay in the caches. FIRST: number of the candidate to begin with. Prints,
 * with tabs:
 *
 *     list DIGEST
 *     gpu NAME ARCH
 *     time NAME NANOSECONDS SPREAD       median of one repetition; SPREAD in thousandths of it
 *     failed NAME RESULT TEXT            the driver's number and text
 *
 * Ends with 0; 2: no driver or no GPU; 3: the list is bad; 4: an error of the GPU that stays until
 * the process ends: begin again with FIRST, which is printed as "broken FIRST".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

enum {
    MOST = 64,    /* tensors, launches and arguments of a candidate */
    REPEATS = 24, /* of a candidate in a graph, at least */
    WARM = 3,     /* runs of a graph that are not counted */
    RUNS = 200    /* at most */
};
enum {
    EARLY_ARCH = 90,
    USUAL_SHARED = 49152,
    LEAST_STICKY = 700,
    GREATEST_STICKY = 720
};

#define MORE_FUNCTIONS(F)                                                                          \
    F(name, "cuDeviceGetName", (char *text, int bytes, int device))                                \
    F(elapsed, "cuEventElapsedTime", (float *milliseconds, void *from, void *to))

static struct {
    CU_FUNCTIONS(KILN_CUDA_MEMBER)
    MORE_FUNCTIONS(KILN_CUDA_MEMBER)
} cu;

typedef struct tensor {
    size_t bytes;
    uint64_t at; /* of the first of `places` */
    unsigned places;
} tensor;

typedef struct launching {
    char entry[256];
    unsigned grid[3], block[3], shared;
    int early;
    unsigned count;
    int64_t words[MOST]; /* a number, or the index of a tensor */
    char kinds[MOST];
    void *module, *function;
} launching;

typedef struct candidate {
    char name[256];
    unsigned tensors, launches;
    tensor memory[MOST];
    launching made[MOST];
} candidate;

static char folder[4096];
static int arch;
static candidate one;

static void bad(const char *what) {
    fprintf(stderr, "time_gpu: the list is not one of time_gpu: %s\n", what);
    exit(3);
}

static size_t rounded(size_t bytes) {
    return (bytes + 511) / 256 * 256;
}

static int load(launching *l, const char *file) {
    char path[4608];
    snprintf(path, sizeof path, "%s%s", folder, file);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        bad(path);
    fseek(f, 0, SEEK_END);
    const long size = ftell(f);
    rewind(f);
    void *image = malloc((size_t)size + 1);
    if (image == NULL || fread(image, 1, (size_t)size, f) != (size_t)size)
        bad(path);
    fclose(f);
    int e = cu.module_load(&l->module, image);
    free(image);
    e = e != CU_OK ? e : cu.module_function(&l->function, l->module, l->entry);
    if (e == CU_OK && l->shared > USUAL_SHARED)
        e = cu.function_attribute(l->function, CU_DYNAMIC_SHARED, (int)l->shared);
    return e;
}

/* Read a candidate after its name; loads the modules. Returns the first error of the driver. */
static int read_candidate(FILE *list, int loads) {
    int e = CU_OK;
    if (fscanf(list, "%255s %u %u", one.name, &one.tensors, &one.launches) != 3 ||
        one.tensors > MOST || one.launches > MOST)
        bad("subject");
    for (unsigned i = 0; i < one.tensors; i++) {
        one.memory[i].at = 0;
        if (fscanf(list, " tensor %zu %u", &one.memory[i].bytes, &one.memory[i].places) != 2)
            bad("tensor");
    }
    for (unsigned i = 0; i < one.launches; i++) {
        launching *l = &one.made[i];
        char file[256];
        if (fscanf(list, " launch %255s %255s %u %u %u %u %u %u %u %d %u", file, l->entry,
                   &l->grid[0], &l->grid[1], &l->grid[2], &l->block[0], &l->block[1], &l->block[2],
                   &l->shared, &l->early, &l->count) != 11 ||
            l->count > MOST)
            bad("launch");
        for (unsigned j = 0; j < l->count; j++)
            if (fscanf(list, " %c%lld", &l->kinds[j], (long long *)&l->words[j]) != 2 ||
                (l->kinds[j] == 't' && (l->words[j] < 0 || l->words[j] >= one.tensors)))
                bad("argument");
        l->module = NULL;
        if (loads && e == CU_OK)
            e = load(l, file);
    }
    return e;
}

static int allocate(size_t cold, void *stream) {
    size_t weights = 1;
    for (unsigned i = 0; i < one.tensors; i++)
        weights += one.memory[i].places ? rounded(one.memory[i].bytes) : 0;
    for (unsigned i = 0; i < one.tensors; i++) {
        tensor *t = &one.memory[i];
        const size_t places = cold / weights;
        t->places = !t->places || places < 1 ? 1 : places > REPEATS ? REPEATS : (unsigned)places;
        int e = cu.alloc(&t->at, rounded(t->bytes) * t->places);
        e = e != CU_OK ? e : cu.zero(t->at, 0x2c, rounded(t->bytes) * t->places, stream);
        if (e != CU_OK)
            return e;
    }
    return CU_OK;
}

/* Put one repetition on the stream. */
static int put(unsigned repetition, void *stream) {
    for (unsigned i = 0; i < one.launches; i++) {
        launching *l = &one.made[i];
        int64_t values[MOST];
        void *arguments[MOST];
        for (unsigned j = 0; j < l->count; j++) {
            values[j] = l->words[j];
            if (l->kinds[j] == 't') {
                const tensor *t = &one.memory[l->words[j]];
                values[j] = (int64_t)(t->at + repetition % t->places * rounded(t->bytes));
            }
            arguments[j] = &values[j];
        }
        cuda_launch_attribute early = {.id = CU_EARLY_LAUNCH, .value = {1}};
        const cuda_launch how = {{l->grid[0], l->grid[1], l->grid[2]},
                                 {l->block[0], l->block[1], l->block[2]},
                                 l->shared,
                                 stream,
                                 &early,
                                 1};
        const int e = l->early && arch >= EARLY_ARCH
                          ? cu.launch_with(&how, l->function, arguments, NULL)
                          : cu.launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                                      l->block[1], l->block[2], l->shared, stream, arguments, NULL);
        if (e != CU_OK)
            return e;
    }
    return CU_OK;
}

static int compare(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Time the candidate; the launches run once outside of the graph first, where errors show. */
static int measure(float milliseconds, void *stream, void *const events[2]) {
    void *graph = NULL, *run = NULL;
    float times[RUNS], spent = 0;
    unsigned count = 0;
    int e = put(0, stream);
    e = e != CU_OK ? e : cu.stream_wait(stream);
    if (e != CU_OK)
        return e;
    if ((e = cu.capture_begin(stream, CU_CAPTURE_RELAXED)) != CU_OK)
        return e;
    for (unsigned i = 0; i < REPEATS && e == CU_OK; i++)
        e = put(i, stream);
    const int ended = cu.capture_end(stream, &graph);
    e = e != CU_OK ? e : ended;
    e = e != CU_OK ? e : cu.graph_make(&run, graph, 0);
    for (int i = -WARM; e == CU_OK && i < RUNS && spent < milliseconds; i++) {
        float taken = 0;
        e = cu.event_record(events[0], stream);
        e = e != CU_OK ? e : cu.graph_launch(run, stream);
        e = e != CU_OK ? e : cu.event_record(events[1], stream);
        e = e != CU_OK ? e : cu.stream_wait(stream);
        e = e != CU_OK ? e : cu.elapsed(&taken, events[0], events[1]);
        if (e == CU_OK && i >= 0) {
            times[count++] = taken / REPEATS;
            spent += taken;
        }
    }
    if (run != NULL)
        (void)cu.executable_free(run);
    if (graph != NULL)
        (void)cu.graph_free(graph);
    if (e == CU_OK) {
        qsort(times, count, sizeof *times, compare);
        const float median = times[count / 2], wide = times[count * 9 / 10] - times[count / 10];
        printf("time\t%s\t%.0f\t%.0f\n", one.name, median * 1e6,
               median > 0 ? wide / median * 1e3 : 0);
    }
    return e;
}

static void release(void) {
    for (unsigned i = 0; i < one.tensors; i++)
        if (one.memory[i].at != 0)
            (void)cu.free(one.memory[i].at);
    for (unsigned i = 0; i < one.launches; i++)
        if (one.made[i].module != NULL)
            (void)cu.module_unload(one.made[i].module);
}

static int start(void **stream, void **events) {
    static const char *const symbols[] = {CU_FUNCTIONS(KILN_CUDA_SYMBOL)
                                              MORE_FUNCTIONS(KILN_CUDA_SYMBOL)};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    char name[256] = "";
    int device = 0, minor = 0, count = 0;
    if (library == NULL) {
        fprintf(stderr, "time_gpu: %s\n", dlerror());
        return 2;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i]);
        if (found == NULL) {
            fprintf(stderr, "time_gpu: the driver has no %s: it is older than CUDA 12\n",
                    symbols[i]);
            return 2;
        }
        memcpy((char *)&cu + i * sizeof found, &found, sizeof found);
    }
    if (cu.init(0) != CU_OK || cu.device_count(&count) != CU_OK || count < 1 ||
        cu.device_get(&device, 0) != CU_OK || cu.context_retain(&context, device) != CU_OK ||
        cu.context_push(context) != CU_OK) {
        fprintf(stderr, "time_gpu: the driver finds no GPU\n");
        return 2;
    }
    int e = cu.name(name, sizeof name, device);
    e = e != CU_OK ? e : cu.device_attribute(&arch, CU_ATTRIBUTE_MAJOR, device);
    e = e != CU_OK ? e : cu.device_attribute(&minor, CU_ATTRIBUTE_MINOR, device);
    arch = arch * 10 + minor;
    e = e != CU_OK ? e : cu.stream_create(stream, CU_STREAM_NON_BLOCKING);
    e = e != CU_OK ? e : cu.event_create(&events[0], 0);
    e = e != CU_OK ? e : cu.event_create(&events[1], 0);
    if (e != CU_OK) {
        fprintf(stderr, "time_gpu: the driver answers %d\n", e);
        return 2;
    }
    printf("gpu\t%s\t%d\n", name, arch);
    return 0;
}

int main(int argc, char **argv) {
    char word[128];
    void *stream = NULL, *events[2] = {NULL, NULL};
    if (argc < 4) {
        fprintf(stderr, "time_gpu LIST MILLISECONDS COLD_BYTES [FIRST]\n");
        return 3;
    }
    FILE *list = fopen(argv[1], "r");
    if (list == NULL || fscanf(list, "list %127s", word) != 1)
        bad(argv[1]);
    printf("list\t%s\n", word);
    const char *end = strrchr(argv[1], '/');
    if (end != NULL)
        snprintf(folder, sizeof folder, "%.*s/", (int)(end - argv[1]), argv[1]);
    const int started = start(&stream, events);
    if (started != 0)
        return started;
    const float milliseconds = strtof(argv[2], NULL);
    const size_t cold = strtoull(argv[3], NULL, 10);
    const long first = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    for (long number = 0; fscanf(list, "%127s", word) == 1; number++) {
        if (strcmp(word, "subject") != 0)
            bad(word);
        int e = read_candidate(list, number >= first);
        if (number < first)
            continue;
        e = e != CU_OK ? e : allocate(cold, stream);
        e = e != CU_OK ? e : measure(milliseconds, stream, events);
        if (e != CU_OK) {
            const char *text = NULL;
            if (cu.error_text(e, &text) != CU_OK || text == NULL)
                text = "";
            printf("failed\t%s\t%d\t%s\n", one.name, e, text);
            if (e >= LEAST_STICKY && e <= GREATEST_STICKY) {
                printf("broken\t%ld\n", number + 1);
                fflush(stdout);
                _Exit(4);
            }
        }
        release();
        fflush(stdout);
    }
    fclose(list);
    return 0;
}
