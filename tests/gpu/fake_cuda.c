/* fake_cuda.c: stands in for libcuda.so.1 in tests. It hands out memory from malloc, keeps the
 * order of a stream, records graphs, and can be told to fail. It runs kernels only where
 * KILN_FAKE_KERNELS names a library of them compiled for this processor (cuda_on_cpu.h), and cannot
 * run machine code for a GPU.
 *
 *     KILN_FAKE_LOG      file to which each call is appended: name, result
 *     KILN_FAKE_FAIL     n:result: the n-th call, counted from 0, does nothing and gives that
 * result KILN_FAKE_GPUS     how many GPUs (default 1);  KILN_FAKE_ARCH  what they are (default 90)
 *     KILN_FAKE_LOADS    what loading a module gives
 *     KILN_FAKE_NAME     name of the GPU
 *     KILN_FAKE_KERNELS  library of kernels: NAME_on_cpu(grid, block, args), NAME_args
 *
 * Work on a stream is done when a program waits for the stream, not before, so that a missing wait
 * gives wrong results. Memory is between guards, which are checked when it is freed. At exit,
 * memory and objects that have not been freed are reported.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

enum {
    OUT_OF_MEMORY = 2,
    INVALID = 1,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY = 209,
    NOT_FOUND = 500,
    CAPTURE = 900
};
enum {
    GUARD = 256,
    MAX_ARGS = 64,
    MAX_OPS = 4096,
    CONTEXTS = 16
};

typedef struct function {
    void (*run)(const unsigned *grid, const unsigned *block, void **args);
    unsigned args;
    unsigned bytes;  /* size of the first argument; the others have at most 8 bytes */
    int waits;       /* whether the kernel's code waits for the launches before it */
    unsigned shared; /* the most dynamic shared memory of a launch, where above 48 KiB */
} function;

/* CUlaunchConfig and CUlaunchAttribute. */
struct launch {
    unsigned size[6], shared;
    void *stream;
    struct {
        int id, gap, value[16];
    } * attributes;
    unsigned count;
};

typedef struct op {
    const function *kernel; /* null: a copy, or a graph */
    unsigned size[6];
    uint64_t args[MAX_ARGS];
    void *to;
    const void *from;
    size_t bytes;
    struct graph *graph;
    struct stream *after; /* the operation waits for the first `until` operations of this stream */
    unsigned until, round;
    void (*host)(void *data);
    void *data;
} op;

typedef struct graph {
    op ops[MAX_OPS];
    unsigned count;
    unsigned launched,
        destroyed; /* launches not done yet; the last of them frees a destroyed one */
} graph;

typedef struct stream {
    graph queue, *capturing;
    unsigned done, round; /* operations of the queue; how often it was emptied */
} stream;

/* What had been put on a stream when the event was recorded. */
typedef struct event {
    stream *on;
    unsigned until, round;
    double blocks; /* number of blocks of the launches before the event */
} event;

static stream default_stream;
static int calls, depth, retained;
static long allocated, pinned, modules, streams, graphs, events;
static void *kernels;
static double blocks_put; /* blocks of all launches put on a stream, those of graphs included */

static double blocks_of(const op *o) {
    return o->kernel == NULL ? 0 : (double)o->size[0] * o->size[1] * o->size[2];
}

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : atoi(text);
}

static void report(void) {
    char text[160];
    snprintf(
        text, sizeof text,
        "left: contexts %d memory %ld pinned %ld modules %ld streams %ld graphs %ld events %ld, "
        "current",
        retained, allocated, pinned, modules, streams, graphs, events);
    say(text, depth);
}

/* Whether this call is the one that is to fail; then *result is what it gives. */
static int told_to_fail(int *result) {
    static int registered;
    const char *text = getenv("KILN_FAKE_FAIL");
    if (!registered)
        registered = atexit(report) == 0;
    const int mine = calls++;
    int at, gives;
    if (text == NULL || sscanf(text, "%d:%d", &at, &gives) != 2 || at != mine)
        return 0;
    *result = gives;
    return 1;
}

#define CALL(...)                                                                                  \
    int result = 0;                                                                                \
    if (!told_to_fail(&result))                                                                    \
        __VA_ARGS__;                                                                               \
    say(__func__, result);                                                                         \
    return result
/* Most calls need a context that is current. */
#define NEEDS_CONTEXT(...)                                                                         \
    CALL({                                                                                         \
        result = depth > 0 ? 0 : INVALID_CONTEXT;                                                  \
        if (result == 0)                                                                           \
            __VA_ARGS__;                                                                           \
    })

int cuInit(unsigned flags) {
    (void)flags;
    CALL(result = number("KILN_FAKE_GPUS", 1) > 0 ? 0 : NO_DEVICE);
}

int cuGetErrorString(int error, const char **text) {
    switch (error) {
    case OUT_OF_MEMORY:
        *text = "out of memory";
        break;
    case NO_DEVICE:
        *text = "no CUDA-capable device is detected";
        break;
    case INVALID_DEVICE:
        *text = "invalid device ordinal";
        break;
    case 700:
        *text = "an illegal memory access was encountered";
        break;
    default:
        *text = "some other error";
    }
    return 0;
}

int cuDeviceGetCount(int *count) {
    CALL(*count = number("KILN_FAKE_GPUS", 1));
}
int cuDeviceGet(int *device, int at) {
    CALL(*device = 40 + at);
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const int arch = number("KILN_FAKE_ARCH", 90);
    (void)device;
    CALL(*value = attribute == 75 ? arch / 10 : arch % 10);
}
int cuDeviceGetName(char *text, int bytes, int device) {
    CALL({
        const char *name = getenv("KILN_FAKE_NAME");
        result = device != 40 ? INVALID_DEVICE : 0;
        snprintf(text, (size_t)bytes, "%s", name == NULL ? "Fake GPU" : name);
    });
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    CALL({
        retained++;
        *context = (void *)(intptr_t)device;
    });
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    CALL(retained--);
}
int cuCtxPushCurrent_v2(void *context) {
    CALL({
        if (context == NULL || retained == 0 || depth == CONTEXTS)
            result = INVALID_CONTEXT;
        else
            depth++;
    });
}
int cuCtxPopCurrent_v2(void **context) {
    (void)context;
    NEEDS_CONTEXT(depth--);
}

int cuModuleLoadData(void **module, const void *image) {
    const char *path = getenv("KILN_FAKE_KERNELS");
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    NEEDS_CONTEXT({
        if (path != NULL && kernels == NULL &&
            (kernels = dlopen(path, RTLD_NOW | RTLD_LOCAL)) == NULL)
            fprintf(stderr, "%s\n", dlerror());
        if (number("KILN_FAKE_LOADS", 0) != 0)
            result = number("KILN_FAKE_LOADS", 0);
        else if (magic != 0xBA55ED50u || (path != NULL && kernels == NULL))
            result = INVALID;
        else if (number("KILN_FAKE_ARCH", 90) < number("KILN_FAKE_IMAGE", 0))
            result = NO_BINARY;
        else {
            modules++;
            *module = &modules;
        }
    });
}
int cuModuleUnload(void *module) {
    NEEDS_CONTEXT(module == &modules ? (void)modules-- : abort());
}
int cuModuleGetFunction(void **out, void *module, const char *name) {
    static function made[1024];
    static int count;
    char text[200];
    (void)module;
    NEEDS_CONTEXT({
        function *f = &made[count++ % 1024];
        memset(f, 0, sizeof *f);
        if (kernels != NULL) {
            snprintf(text, sizeof text, "%s_on_cpu", name);
            void *address = dlsym(kernels, text);
            memcpy(&f->run, &address, sizeof address);
            snprintf(text, sizeof text, "%s_args", name);
            const unsigned *args = dlsym(kernels, text);
            f->args = args == NULL ? 0 : *args;
            snprintf(text, sizeof text, "%s_bytes", name);
            const unsigned *bytes = dlsym(kernels, text);
            f->bytes = bytes == NULL || f->args != 1 || *bytes < 8 ? 8 : *bytes;
            snprintf(text, sizeof text, "%s_waits", name);
            f->waits = dlsym(kernels, text) != NULL;
            result = address == NULL || args == NULL ? NOT_FOUND : 0;
        }
        *out = f;
    });
}

int cuFuncSetAttribute(void *given, int attribute, int value) {
    NEEDS_CONTEXT({
        function *f = given;
        if (attribute != 8 || value > 232448) /* 227 KiB, as on sm_90 */
            result = INVALID;
        else
            f->shared = (unsigned)value;
    });
}

/* ---- memory ---- */

static void *guarded(size_t bytes) {
    unsigned char *block = aligned_alloc(256, (bytes + 2 * GUARD + 511) / 256 * 256);
    if (block == NULL)
        return NULL;
    memset(block, 0xA5, GUARD);
    memcpy(block, &bytes, sizeof bytes);
    memset(block + GUARD, 0xCD, bytes); /* what is read before it is written shows */
    memset(block + GUARD + bytes, 0xA5, GUARD);
    return block + GUARD;
}

static void check_and_free(void *memory) {
    unsigned char *block = (unsigned char *)memory - GUARD;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    for (size_t i = 0; i < GUARD; i++)
        if ((i >= sizeof bytes && block[i] != 0xA5) || block[GUARD + bytes + i] != 0xA5) {
            fprintf(stderr, "memory was written beyond its ends\n");
            abort();
        }
    free(block);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    NEEDS_CONTEXT({
        *address = (uintptr_t)guarded(bytes);
        allocated++;
    });
}
int cuMemFree_v2(uint64_t address) {
    NEEDS_CONTEXT({
        check_and_free((void *)(uintptr_t)address);
        allocated--;
    });
}
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT({
        *memory = guarded(bytes);
        pinned++;
    });
}
int cuMemFreeHost(void *memory) {
    NEEDS_CONTEXT({
        check_and_free(memory);
        pinned--;
    });
}

/* ---- streams and graphs ---- */

static stream *stream_at(void *given) {
    return given == NULL || given == (void *)1 ? &default_stream : given;
}

static op *put(void *on) {
    stream *s = stream_at(on);
    graph *g = s->capturing != NULL ? s->capturing : &s->queue;
    if (g->count == MAX_OPS)
        abort();
    memset(&g->ops[g->count], 0, sizeof(op));
    return &g->ops[g->count++];
}

static void catch_up(stream *s, unsigned until);

static void do_some(const graph *g, unsigned from, unsigned until) {
    for (unsigned i = from; i < until; i++) {
        const op *o = &g->ops[i];
        void *args[MAX_ARGS];
        for (unsigned k = 0; k < MAX_ARGS; k++)
            args[k] = (void *)&o->args[k];
        if (o->graph != NULL) {
            do_some(o->graph, 0, o->graph->count);
            if (--o->graph->launched == 0 && o->graph->destroyed)
                free(o->graph);
        } else if (o->after != NULL) {
            if (o->after->round == o->round)
                catch_up(o->after, o->until);
        } else if (o->host != NULL)
            o->host(o->data);
        else if (o->kernel == NULL)
            memcpy(o->to, o->from, o->bytes);
        else if (o->kernel->run != NULL)
            o->kernel->run(o->size, o->size + 3, args);
    }
}

static void catch_up(stream *s, unsigned until) {
    const unsigned from = s->done;
    if (until > from) {
        s->done = until;
        do_some(&s->queue, from, until);
    }
}

static int copy(void *to, const void *from, size_t bytes, void *on) {
    op *o = put(on);
    o->to = to;
    o->from = from;
    o->bytes = bytes;
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *on) {
    NEEDS_CONTEXT(result = copy((void *)(uintptr_t)to, from, bytes, on));
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *on) {
    NEEDS_CONTEXT(result = copy(to, (void *)(uintptr_t)from, bytes, on));
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *on) {
    NEEDS_CONTEXT(result = copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, on));
}
static void filled(void *data) {
    const op *o = data;
    memset(o->to, (int)o->round, o->bytes);
    free(data);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *on) {
    NEEDS_CONTEXT({
        op *what = calloc(1, sizeof *what), *o = put(on);
        what->to = (void *)(uintptr_t)to;
        what->bytes = bytes;
        what->round = value;
        o->host = filled;
        o->data = what;
    });
}
int cuEventCreate(void **made, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT({
        *made = calloc(1, sizeof(event));
        events++;
    });
}
int cuEventDestroy_v2(void *given) {
    NEEDS_CONTEXT({
        free(given);
        events--;
    });
}
int cuEventRecord(void *given, void *on) {
    NEEDS_CONTEXT({
        stream *s = stream_at(on);
        *(event *)given = (event){s, s->queue.count, s->round, blocks_put};
    });
}
/* A made-up time: that of the blocks that were put on the stream between the two events. */
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    NEEDS_CONTEXT({
        const event *a = from, *b = to;
        *milliseconds = (float)(b->blocks - a->blocks) * 1e-3f;
    });
}
int cuStreamWaitEvent(void *on, void *given, unsigned flags) {
    const event *e = given;
    (void)flags;
    NEEDS_CONTEXT({
        op *o = put(on);
        o->after = e->on;
        o->until = e->until;
        o->round = e->round;
    });
}
int cuStreamCreate(void **made, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT({
        *made = calloc(1, sizeof(stream));
        streams++;
    });
}
int cuStreamDestroy_v2(void *given) {
    NEEDS_CONTEXT({
        free(((stream *)given)->capturing);
        free(given);
        streams--;
    });
}
int cuStreamSynchronize(void *given) {
    stream *s = stream_at(given);
    NEEDS_CONTEXT({
        catch_up(s, s->queue.count);
        s->queue.count = s->done = 0;
        s->round++;
    });
}
/* For the stand-ins of libraries; not counted as a call. */
int cuStreamIsCapturing(void *on, int *capturing) {
    *capturing = stream_at(on)->capturing != NULL;
    return 0;
}
int cuStreamBeginCapture_v2(void *given, int mode) {
    stream *s = given;
    NEEDS_CONTEXT({
        if (mode != 2 || s->capturing != NULL)
            result = CAPTURE;
        else
            s->capturing = calloc(1, sizeof(graph));
    });
}
int cuStreamEndCapture(void *given, void **made) {
    stream *s = given;
    NEEDS_CONTEXT({
        *made = s->capturing;
        s->capturing = NULL;
        graphs++;
    });
}
int cuGraphInstantiateWithFlags(void **executable, void *given, unsigned long long flags) {
    (void)flags;
    NEEDS_CONTEXT({
        *executable = malloc(sizeof(graph));
        memcpy(*executable, given, sizeof(graph));
        graphs++;
    });
}
int cuGraphDestroy(void *given) {
    NEEDS_CONTEXT({
        free(given);
        graphs--;
    });
}
int cuGraphExecDestroy(void *given) {
    NEEDS_CONTEXT({
        graph *g = given;
        g->destroyed = 1;
        if (g->launched == 0)
            free(g);
        graphs--;
    });
}
int cuGraphUpload(void *executable, void *on) {
    NEEDS_CONTEXT(result = executable == NULL || stream_at(on)->capturing != NULL ? INVALID : 0);
}
int cuGraphLaunch(void *executable, void *on) {
    NEEDS_CONTEXT({
        graph *g = executable;
        put(on)->graph = g;
        for (unsigned i = 0; i < g->count; i++)
            blocks_put += blocks_of(&g->ops[i]);
        g->launched++;
    });
}
/* The way in which stand-ins for libraries put their work on a stream. */
int cuLaunchHostFunc(void *on, void (*host)(void *data), void *data) {
    NEEDS_CONTEXT({
        op *o = put(on);
        o->host = host;
        o->data = data;
    });
}
int cuLaunchKernel(void *given, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *on, void **parameters, void **extra) {
    const function *called = given;
    (void)extra;
    if (shared > 49152 && shared > called->shared) {
        CALL(result = INVALID);
    }
    NEEDS_CONTEXT({
        op *o = put(on);
        const unsigned size[] = {gx, gy, gz, bx, by, bz};
        o->kernel = given;
        memcpy(o->size, size, sizeof size);
        for (unsigned i = 0; i < o->kernel->args; i++)
            memcpy(&o->args[i], parameters[i], called->bytes);
    });
}

/* The one attribute is that the launch may begin early: of a kernel that does not wait it is
 * refused. */
int cuLaunchKernelEx(const struct launch *launch, void *given, void **parameters, void **extra) {
    const function *called = given;
    (void)extra;
    if (launch->count != 1 || launch->attributes->id != 6 || launch->attributes->value[0] != 1 ||
        (kernels != NULL && !called->waits) || number("KILN_FAKE_ARCH", 90) < 90 ||
        (launch->shared > 49152 && launch->shared > called->shared)) {
        CALL(result = INVALID);
    }
    NEEDS_CONTEXT({
        op *o = put(launch->stream);
        o->kernel = given;
        memcpy(o->size, launch->size, sizeof o->size);
        for (unsigned i = 0; i < o->kernel->args; i++)
            memcpy(&o->args[i], parameters[i], sizeof o->args[i]);
    });
}
