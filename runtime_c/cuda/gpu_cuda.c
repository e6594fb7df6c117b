/* gpu_cuda.c: runs a model on an NVIDIA GPU through its driver, which is loaded at run time.
 *
 * Opening a session, each step undone in reverse order when a later one fails:
 *     1. libcuda.so.1, once for the process;
 *     2. what all sessions of the model on that GPU share: context, modules, kernels, parameters;
 *     3. pinned memory: the session's state, then a place for each tensor that is copied;
 *     4. memory on the GPU: the arena of the largest bucket, state, inputs, outputs; a stream, an
 *        event;
 *     5. handles of the libraries that compute steps;
 *     6. for each bucket whose launches are always the same, a graph: captured from the
 *        plan's steps and uploaded, after each call of a library was made once.
 *
 * Where the launches of a bucket depend on the sizes of a run, the second run of the same sizes
 * captures a graph, too; the session keeps those of the RECENT sizes that were used last.
 *
 * A run copies the inputs and the state, launches the bucket's graph or its steps, copies the
 * outputs and the state back, waits. With kiln_step the steps are launched one by one.
 * Runs are put on the caller's stream if there is one; the work of opening a session is put on the
 * session's own stream.
 *
 * Shared state is changed under one lock; afterwards it is only read. No heap: all memory is the
 * driver's.
 */
#include "kiln_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "cuda_convert.h"
#include "cuda_driver.h"
#include "cuda_library.h"
#include "../core/internal.h"

#define ALIGN        256u /* of every tensor on the GPU, as cuMemAlloc aligns memory */
#define MAX_ARGS     64u
#define RECENT       8u /* sizes whose graphs a session keeps, where a bucket has none of its own */
#define USUAL_SHARED 49152u /* bytes of shared memory that a launch may ask for without leave */

/* Sizes of a run in a bucket without a graph of its own; those of the n-th entry are `sizes` from
 * n * dims_count on. */
typedef struct recent {
    void *graph;       /* executable; null: seen once */
    uint64_t last_run; /* number of the run that used it last; 0: not in use */
    uint32_t bucket;
    bool no_memory; /* for a graph: runs launch the steps */
} recent;

typedef struct state {
    kiln_frame
        frame; /* of addresses on the GPU; first, as kiln_cuda_launch casts it to the state */
    const kiln_model *model;
    const kiln_cuda_model *cuda;
    kiln_cuda_shared *shared;
    uint64_t memory; /* on the GPU */
    void *stream;    /* the stream for the next launches */
    void *own;       /* the session's own stream */
    void *event;     /* recorded after the work on the default stream before a run */
    int failed;      /* CUresult of the launch that failed, or a library's status */
    bool by_library;
    DLTensor *tensors;      /* (inputs, then outputs) on the GPU */
    DLTensor *given;        /* (inputs) of a run that converts some of them */
    unsigned char **pinned; /* (inputs, then outputs) */
    void **graphs;          /* (buckets) executable ones */
    kiln_cuda_call *calls;  /* (calls of the model) */
    int64_t *sizes;         /* (RECENT, dims_count) */
    uint64_t runs;          /* in buckets without a graph */
    recent recent[RECENT];
    void *handles[KILN_CUDA_LIBRARIES]; /* of the libraries; null: none */
    const char *library_text; /* where `failed` is a library's status and not the driver's */
    bool libraries_only;      /* launch the steps that libraries compute, no kernels */
    bool wait;                /* the run is to be waited for */
    int32_t gpu;
} state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_driver driver;

static kiln_status fail(kiln_session *session, kiln_status status, const char *name, int64_t value,
                        int64_t min) {
    const kiln_detail error = {.status = status,
                               .where = KILN_AT_GPU,
                               .name = name,
                               .index = session->config.gpu,
                               .axis = -1,
                               .value = value,
                               .min = min,
                               .max = min};
    return kiln_fail(&session->detail, &error);
}

/* The driver's result as a status, with the driver's text; `bytes`: size of the allocation that
 * failed, if it was one. */
static kiln_status check(kiln_session *session, int result, size_t bytes) {
    const char *text = NULL;
    if (result == CU_OK)
        return KILN_OK;
    if (driver.error_text(result, &text) != CU_OK)
        text = NULL;
    return result == CU_OUT_OF_MEMORY ? fail(session, KILN_GPU_MEMORY, text, result, (int64_t)bytes)
                                      : fail(session, KILN_GPU_FAILED, text, result, 0);
}

/* The same after steps: a step that a library computes fails with the library's status and text. */
static kiln_status check_steps(kiln_session *session, const state *s, int result) {
    return result != CU_OK && s->by_library
               ? fail(session, KILN_LIBRARY, s->library_text, result, 0)
               : check(session, result, 0);
}

/* ---- libraries --------------------------------------------------------------------------------
 */

/* Open the library and look up its functions. The caller holds the lock of the loaders. */
static bool load(kiln_cuda_loader *loader) {
    void *library = dlopen(loader->file, RTLD_NOW | RTLD_LOCAL);
    bool complete = library != NULL;
    for (uint32_t i = 0; complete && i < loader->count; i++) {
        void *const function = dlsym(library, loader->symbols[i]);
        complete = function != NULL;
        memcpy((unsigned char *)loader->functions + i * sizeof function, &function,
               sizeof function);
    }
    if (complete)
        return true;
    const char *text = dlerror();
    size_t at = 0;
    for (; text != NULL && text[at] != '\0' && at + 1 < sizeof loader->error; at++)
        loader->error[at] = text[at];
    loader->error[at] = '\0';
    if (library != NULL)
        (void)dlclose(library);
    return false;
}

bool kiln_cuda_load(kiln_cuda_loader *loader, const char **text) {
    static pthread_mutex_t loaders = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&loaders);
    if (!loader->loaded)
        loader->loaded = load(loader);
    const bool done = loader->loaded;
    (void)pthread_mutex_unlock(&loaders);
    if (!done)
        *text = loader->error[0] == '\0' ? NULL : loader->error;
    return done;
}

/* Load the driver, once for the process. The caller holds the lock. */
static kiln_status load_driver(kiln_session *session) {
    static const char *const symbols[] = {CU_FUNCTIONS(KILN_CUDA_SYMBOL)};
    static kiln_cuda_loader loader = {.file = "libcuda.so.1",
                                      .symbols = symbols,
                                      .functions = &driver,
                                      .count = sizeof symbols / sizeof symbols[0]};
    _Static_assert(sizeof symbols == sizeof driver, "a function is an address");
    static bool ready;
    const char *text = NULL;
    if (ready)
        return KILN_OK;
    if (!kiln_cuda_load(&loader, &text))
        return fail(session, KILN_GPU_DRIVER, text, 0, 0);
    const int result = driver.init(0);
    if (result == CU_NO_DEVICE) {
        (void)driver.error_text(result, &text);
        return fail(session, KILN_GPU_ABSENT, text, session->config.gpu, 0);
    }
    ready = result == CU_OK;
    return check(session, result, 0);
}

static kiln_status find_device(kiln_session *session, int *device, int *arch) {
    int count = 0, major = 0, minor = 0;
    const int number = session->config.gpu;
    int result = driver.device_count(&count);
    if (result == CU_OK && (number < 0 || number >= count || number >= KILN_CUDA_GPUS)) {
        const char *text = NULL;
        (void)driver.error_text(count == 0 ? CU_NO_DEVICE : CU_INVALID_DEVICE, &text);
        return fail(session, KILN_GPU_ABSENT, text, number, count);
    }
    if (result == CU_OK)
        result = driver.device_get(device, number);
    if (result == CU_OK)
        result = driver.device_attribute(&major, CU_ATTRIBUTE_MAJOR, *device);
    if (result == CU_OK)
        result = driver.device_attribute(&minor, CU_ATTRIBUTE_MINOR, *device);
    *arch = 10 * major + minor;
    return check(session, result, 0);
}

/* ---- state shared by the sessions of a model ----------------------------------------------------
 */

/* Free the parameters and modules. The caller holds the lock, and the context is current. */
static void drop_shared(kiln_cuda_shared *shared, const kiln_cuda_model *cuda) {
    if (shared->params != 0)
        (void)driver.free(shared->params);
    for (uint32_t i = 0; i < cuda->modules_count; i++) {
        if (shared->modules[i] != NULL)
            (void)driver.module_unload(shared->modules[i]);
        shared->modules[i] = NULL;
    }
    shared->params = 0;
}

/* Kernel i of the loaded modules; the memory that its launches ask for is allowed once for all. */
static int find_kernel(const kiln_cuda_model *cuda, void *const *modules, uint32_t i,
                       void **kernel) {
    void *const module = modules[cuda->module_of != NULL ? cuda->module_of[i] : 0];
    const uint32_t bytes = cuda->dynamic_bytes != NULL ? cuda->dynamic_bytes[i] : 0;
    const int result = driver.module_function(kernel, module, cuda->kernels[i]);
    return result != CU_OK || bytes <= USUAL_SHARED
               ? result
               : driver.function_attribute(*kernel, CU_DYNAMIC_SHARED, (int)bytes);
}

static kiln_status fill_shared(kiln_session *session, const kiln_model *model,
                               const kiln_cuda_model *cuda, kiln_cuda_shared *shared, int arch) {
    void **kernels = cuda->functions + (size_t)session->config.gpu * cuda->kernels_count;
    int result = CU_OK;
    for (uint32_t i = 0; result == CU_OK && i < cuda->modules_count; i++)
        result = driver.module_load(&shared->modules[i], cuda->images[i]);
    if (result == CU_NO_BINARY || result == CU_INVALID_PTX || result == CU_NO_PTX_COMPILER ||
        result == CU_PTX_VERSION || result == CU_PTX_DISABLED)
        return fail(session, KILN_GPU_ARCH, cuda->archs, arch, result);
    for (uint32_t i = 0; result == CU_OK && i < cuda->kernels_count; i++)
        result = find_kernel(cuda, shared->modules, i, &kernels[i]);
    shared->kernels = kernels;
    shared->early = false;
    for (const uint32_t *on = cuda->waits_on; on != NULL && *on != 0; on++)
        shared->early |= *on == (uint32_t)arch;
    if (result != CU_OK || model->params_bytes == 0)
        return check(session, result, 0);
    result = driver.alloc(&shared->params, model->params_bytes);
    if (result == CU_OK)
        result = driver.copy_in(shared->params, session->frame.params, model->params_bytes, NULL);
    if (result == CU_OK)
        result = driver.stream_wait(NULL);
    return check(session, result, model->params_bytes);
}

/* Take a share of the state of the model on this GPU, and make it if there is none yet. Afterwards
 * the context is current, unless *taken is null. */
static kiln_status take_shared(kiln_session *session, const kiln_model *model,
                               const kiln_cuda_model *cuda, kiln_cuda_shared **taken) {
    int device = 0, arch = 0;
    kiln_status status = load_driver(session);
    if (status == KILN_OK)
        status = find_device(session, &device, &arch);
    if (status != KILN_OK)
        return status;
    kiln_cuda_shared *shared = &cuda->shared[session->config.gpu];
    if (shared->sessions == 0) {
        status = check(session, driver.context_retain(&shared->context, device), 0);
        if (status != KILN_OK)
            return status;
        shared->device = device;
        shared->modules = cuda->modules + (size_t)session->config.gpu * cuda->modules_count;
    }
    status = check(session, driver.context_push(shared->context), 0);
    if (status == KILN_OK && shared->sessions == 0) {
        status = fill_shared(session, model, cuda, shared, arch);
        if (status != KILN_OK) {
            drop_shared(shared, cuda);
            (void)driver.context_pop(&(void *){NULL});
        }
    }
    if (status != KILN_OK) {
        if (shared->sessions == 0)
            (void)driver.context_release(device);
        return status;
    }
    shared->sessions++;
    *taken = shared;
    return KILN_OK;
}

/* Give the share back, and free the state with the last one. The context is current before, and not
 * afterwards. */
static void leave_shared(kiln_cuda_shared *shared, const kiln_cuda_model *cuda) {
    (void)pthread_mutex_lock(&lock);
    shared->sessions--;
    const bool last = shared->sessions == 0;
    if (last)
        drop_shared(shared, cuda);
    (void)driver.context_pop(&(void *){NULL});
    if (last)
        (void)driver.context_release(shared->device);
    (void)pthread_mutex_unlock(&lock);
}

/* ---- a session ---------------------------------------------------------------------------------
 */

static size_t padded(size_t bytes) {
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static uint32_t tensors_of(const kiln_model *model) {
    return model->inputs_count + model->outputs_count;
}

static const kiln_tensor *about(const kiln_model *model, uint32_t index) {
    return index < model->inputs_count ? &model->inputs[index]
                                       : &model->outputs[index - model->inputs_count];
}

/* Release all resources of the state, however far it was opened; the context is current. */
static void drop_state(state *s) {
    for (uint32_t i = 0; i < s->model->buckets_count; i++)
        if (s->graphs[i] != NULL)
            (void)driver.executable_free(s->graphs[i]);
    for (uint32_t i = 0; i < RECENT; i++)
        if (s->recent[i].graph != NULL)
            (void)driver.executable_free(s->recent[i].graph);
    for (uint32_t i = 0; i < s->cuda->calls_count; i++)
        if (s->calls[i].library != 0)
            s->cuda->libraries[s->calls[i].library - 1]->release(&s->calls[i]);
    for (uint32_t i = 0; i < s->cuda->libraries_count; i++)
        if (s->handles[i] != NULL)
            s->cuda->libraries[i]->close(s->handles[i]);
    if (s->event != NULL)
        (void)driver.event_destroy(s->event);
    if (s->own != NULL)
        (void)driver.stream_destroy(s->own);
    if (s->memory != 0)
        (void)driver.free(s->memory);
    (void)driver.host_free(s);
}

/* The state at the start of pinned memory, followed by its arrays and the memory of the tensors. */
static kiln_status make_pinned(kiln_session *session, const kiln_model *model,
                               const kiln_cuda_model *cuda, state **made) {
    const uint32_t count = tensors_of(model);
    const size_t tensors_at = padded(sizeof(state));
    const size_t given_at = tensors_at + padded(count * sizeof(DLTensor));
    const size_t pinned_at = given_at + padded(model->inputs_count * sizeof(DLTensor));
    const size_t graphs_at = pinned_at + padded(count * sizeof(unsigned char *));
    const size_t calls_at = graphs_at + padded(model->buckets_count * sizeof(void *));
    const size_t sizes_at = calls_at + padded(cuda->calls_count * sizeof(kiln_cuda_call));
    size_t bytes = sizes_at + padded(RECENT * (size_t)model->dims_count * sizeof(int64_t));
    void *memory = NULL;
    const size_t head = bytes;
    for (uint32_t i = 0; i < count; i++)
        bytes += padded(cuda->tensor_bytes[i]);
    const kiln_status status = check(session, driver.host_alloc(&memory, bytes, 0), bytes);
    if (status != KILN_OK)
        return status;
    memset(memory, 0, head);
    unsigned char *base = memory;
    state *s = memory;
    s->tensors = (DLTensor *)(void *)(base + tensors_at);
    s->given = (DLTensor *)(void *)(base + given_at);
    s->pinned = (unsigned char **)(void *)(base + pinned_at);
    s->graphs = (void **)(void *)(base + graphs_at);
    s->calls = (kiln_cuda_call *)(void *)(base + calls_at);
    s->sizes = (int64_t *)(void *)(base + sizes_at);
    base += head;
    for (uint32_t i = 0; i < count; base += padded(cuda->tensor_bytes[i]), i++)
        s->pinned[i] = base;
    s->model = model;
    s->cuda = cuda;
    s->gpu = session->config.gpu;
    *made = s;
    return KILN_OK;
}

static kiln_status make_device(kiln_session *session, state *s) {
    const uint32_t count = tensors_of(s->model);
    size_t arena = 0, bytes;
    for (uint32_t i = 0; i < s->model->buckets_count; i++)
        if (s->cuda->arena_bytes[i] > arena)
            arena = s->cuda->arena_bytes[i];
    /* Before a run the arena holds pinned inputs that are to be converted, one at a time. */
    for (uint32_t i = 0; s->cuda->conversion != 0 && i < s->model->inputs_count; i++)
        if (s->cuda->tensor_bytes[i] / 2 > arena)
            arena = s->cuda->tensor_bytes[i] / 2;
    bytes = padded(arena) + padded(s->model->state_bytes);
    for (uint32_t i = 0; i < count; i++)
        bytes += padded(s->cuda->tensor_bytes[i]);
    if (bytes > 0) {
        const kiln_status status = check(session, driver.alloc(&s->memory, bytes), bytes);
        if (status != KILN_OK)
            return status;
    }
    unsigned char *at = (unsigned char *)(uintptr_t)s->memory;
    s->frame.arena = at;
    s->frame.params = (const unsigned char *)(uintptr_t)s->shared->params;
    s->frame.inputs = s->tensors;
    s->frame.outputs = s->tensors + s->model->inputs_count;
    at += padded(arena);
    s->frame.state = at;
    at += padded(s->model->state_bytes);
    for (uint32_t i = 0; i < count; at += padded(s->cuda->tensor_bytes[i]), i++)
        s->tensors[i].data = at;
    int result = driver.stream_create(&s->own, CU_STREAM_NON_BLOCKING);
    if (result == CU_OK)
        result = driver.event_create(&s->event, CU_EVENT_NO_TIMES);
    if (result == CU_OK && bytes > 0)
        result = driver.zero(s->memory, 0, bytes, s->own);
    s->stream = s->own;
    return check(session, result, 0);
}

static kiln_status open_libraries(kiln_session *session, state *s) {
    for (uint32_t i = 0; i < s->cuda->libraries_count; i++) {
        const char *text = NULL;
        const int32_t result = s->cuda->libraries[i]->open(&s->handles[i], &text);
        if (result != 0)
            return fail(session, result < 0 ? KILN_LIBRARY_ABSENT : KILN_LIBRARY, text, result, 0);
    }
    return KILN_OK;
}

/* Launch a step; returns a CUresult, or a library's status. */
static int launch_step(state *s, uint32_t bucket, uint32_t step) {
    s->failed = CU_OK;
    s->by_library = false;
    (void)s->model->variants->step(&s->frame, bucket, step); /* -1 where `failed` says why */
    return s->failed;
}

static int launch_steps(state *s, uint32_t bucket) {
    int result = CU_OK;
    for (uint32_t step = 0; result == CU_OK && step < s->model->buckets[bucket].steps; step++)
        result = launch_step(s, bucket, step);
    return result;
}

/* Capture the steps of a bucket into an executable graph; returns a CUresult, or a library's
 * status. */
static int capture_steps(state *s, uint32_t bucket, void **executable) {
    void *graph = NULL;
    /* Relaxed: the driver may load a kernel when it first sees it launched. */
    int result = driver.capture_begin(s->stream, CU_CAPTURE_RELAXED);
    if (result != CU_OK)
        return result;
    result = launch_steps(s, bucket);
    const int ended = driver.capture_end(s->stream, &graph);
    if (result == CU_OK)
        result = ended;
    if (result == CU_OK)
        result = driver.graph_make(executable, graph, 0);
    if (graph != NULL)
        (void)driver.graph_free(graph);
    return result;
}

static kiln_status capture(kiln_session *session, state *s, uint32_t bucket) {
    s->libraries_only = true;
    int result = s->cuda->calls_count == 0 ? CU_OK : launch_steps(s, bucket);
    s->libraries_only = false;
    if (result != CU_OK)
        return check_steps(session, s, result);
    /* Before the capture, so that what fails there is not taken for a failure of the capture. */
    result = driver.stream_wait(s->stream);
    if (result != CU_OK)
        return check(session, result, 0);
    result = capture_steps(s, bucket, &s->graphs[bucket]);
    if (result == CU_OK)
        result = driver.graph_upload(s->graphs[bucket], s->stream);
    return check_steps(session, s, result);
}

static kiln_status open_session(kiln_session *session, const kiln_model *model) {
    const kiln_cuda_model *cuda = model->gpu_model;
    kiln_cuda_shared *shared = NULL;
    state *s = NULL;
    (void)pthread_mutex_lock(&lock);
    kiln_status status = take_shared(session, model, cuda, &shared);
    (void)pthread_mutex_unlock(&lock);
    if (status != KILN_OK)
        return status;
    status = make_pinned(session, model, cuda, &s);
    if (status == KILN_OK) {
        s->shared = shared;
        status = make_device(session, s);
        if (status == KILN_OK)
            status = open_libraries(session, s);
        for (uint32_t i = 0; status == KILN_OK && i < model->buckets_count; i++)
            if (cuda->has_graph[i])
                status = capture(session, s, i);
        if (status == KILN_OK) /* the caller's stream does not wait for the session's own */
            status = check(session, driver.stream_wait(s->own), 0);
        if (status != KILN_OK)
            drop_state(s);
    }
    if (status != KILN_OK) {
        leave_shared(shared, cuda);
        return status;
    }
    (void)driver.context_pop(&(void *){NULL});
    s->stream = session->config.gpu_stream != NULL ? session->config.gpu_stream : s->own;
    s->wait = true;
    session->gpu = s;
    return KILN_OK;
}

static void close_session(kiln_session *session) {
    state *s = session->gpu;
    kiln_cuda_shared *shared = s->shared;
    (void)driver.context_push(shared->context);
    (void)driver.stream_wait(s->stream);
    const kiln_cuda_model *cuda = s->cuda; /* the state is in memory that is freed now */
    drop_state(s);
    leave_shared(shared, cuda);
    session->gpu = NULL;
}

/* ---- a run -------------------------------------------------------------------------------------
 */

static unsigned char *data_of(const DLTensor *tensor) {
    return (unsigned char *)tensor->data + tensor->byte_offset;
}

/* Copy tensor i of the run to the GPU, or back; returns a CUresult. */
static int move(state *s, const kiln_session *session, uint32_t i) {
    const bool in = i < s->model->inputs_count;
    const DLTensor *given =
        in ? &session->frame.inputs[i] : &session->frame.outputs[i - s->model->inputs_count];
    const size_t bytes = kiln_tensor_shape(about(s->model, i), session->dims, NULL);
    unsigned char *caller = bytes == 0 ? NULL : data_of(given);
    const uint64_t here = (uintptr_t)s->tensors[i].data;
    if (bytes == 0 || (uintptr_t)caller == here)
        return CU_OK;
    if (given->device.device_type == kDLCUDA)
        return in ? driver.copy_across(here, (uintptr_t)caller, bytes, s->stream)
                  : driver.copy_across((uintptr_t)caller, here, bytes, s->stream);
    if (given->device.device_type == kDLCPU) {
        if (in)
            memcpy(s->pinned[i], caller, bytes);
        caller = s->pinned[i];
    }
    return in ? driver.copy_in(here, caller, bytes, s->stream)
              : driver.copy_out(caller, here, bytes, s->stream);
}

/* A tensor on a GPU must be on this one; one that is copied without waiting must be pinned or
 * there. *on_gpu: whether any is on the GPU. */
static kiln_status check_places(kiln_session *session, const state *s, bool *on_gpu) {
    *on_gpu = false;
    for (uint32_t i = 0; i < tensors_of(s->model); i++) {
        const bool in = i < s->model->inputs_count;
        const uint32_t index = in ? i : i - s->model->inputs_count;
        const DLTensor *given = in ? &session->frame.inputs[index] : &session->frame.outputs[index];
        const DLDevice device = given->device;
        kiln_detail error = {.status = KILN_BAD_GPU,
                             .where = in ? KILN_AT_INPUT : KILN_AT_OUTPUT,
                             .name = about(s->model, i)->name,
                             .index = (int32_t)index,
                             .axis = -1,
                             .value = device.device_id,
                             .min = s->gpu,
                             .max = s->gpu};
        if (device.device_type == kDLCUDA && device.device_id != s->gpu)
            return kiln_fail(&session->detail, &error);
        *on_gpu |= device.device_type == kDLCUDA;
        if (device.device_type != kDLCPU || s->wait ||
            kiln_tensor_shape(about(s->model, i), session->dims, NULL) == 0)
            continue;
        error.status = KILN_BAD_DEVICE;
        error.value = device.device_type;
        error.min = kDLCUDA;
        error.max = kDLCUDAHost;
        return kiln_fail(&session->detail, &error);
    }
    return KILN_OK;
}

static kiln_status begin_run(kiln_session *session) {
    state *s = session->gpu;
    bool on_gpu;
    kiln_status status = check_places(session, s, &on_gpu);
    if (status != KILN_OK)
        return status;
    int result = driver.context_push(s->shared->context);
    if (result != CU_OK)
        return check(session, result, 0);
    s->frame.dims = session->dims;
    if (on_gpu && s->stream == s->own) {
        result = driver.event_record(s->event, CU_DEFAULT_STREAM);
        if (result == CU_OK)
            result = driver.stream_after(s->own, s->event, 0);
    }
    for (uint32_t i = 0; result == CU_OK && i < s->model->inputs_count; i++)
        result = move(s, session, i);
    if (result == CU_OK && s->model->state_bytes > 0)
        result = driver.copy_in((uintptr_t)s->frame.state, session->config.state,
                                s->model->state_bytes, s->stream);
    (void)driver.context_pop(&(void *){NULL});
    return check(session, result, 0);
}

/* After the last launch, with the context current: copy outputs and state, wait if the run is to be
 * waited for, and hand them out. */
static int end_run(state *s, const kiln_session *session) {
    int result = CU_OK;
    for (uint32_t i = s->model->inputs_count; result == CU_OK && i < tensors_of(s->model); i++)
        result = move(s, session, i);
    if (result == CU_OK && s->model->state_bytes > 0)
        result = driver.copy_out(session->config.state, (uintptr_t)s->frame.state,
                                 s->model->state_bytes, s->stream);
    if (!s->wait)
        return result;
    const int waited = driver.stream_wait(s->stream);
    if (result == CU_OK)
        result = waited;
    for (uint32_t i = s->model->inputs_count; result == CU_OK && i < tensors_of(s->model); i++) {
        const DLTensor *given = &session->frame.outputs[i - s->model->inputs_count];
        const size_t bytes = kiln_tensor_shape(about(s->model, i), session->dims, NULL);
        if (given->device.device_type == kDLCPU && bytes > 0)
            memcpy(data_of(given), s->pinned[i], bytes);
    }
    return result;
}

static kiln_status run_step(kiln_session *session) {
    state *s = session->gpu;
    int result = driver.context_push(s->shared->context);
    if (result != CU_OK)
        return check(session, result, 0);
    result = launch_step(s, session->bucket, session->step);
    if (result == CU_OK)
        result = driver.stream_wait(s->stream);
    if (result == CU_OK && session->step + 1 == session->steps)
        result = end_run(s, session);
    (void)driver.context_pop(&(void *){NULL});
    return check_steps(session, s, result);
}

/* The entry of this run's sizes; those that were used longest ago make place for new ones. A graph
 * that a call of kiln_cuda_enqueue still runs is freed by the driver when it ends. */
static recent *entry_of(state *s, const kiln_session *session) {
    const size_t count = s->model->dims_count, bytes = count * sizeof(int64_t);
    recent *oldest = &s->recent[0];
    for (uint32_t i = 0; i < RECENT; i++) {
        recent *one = &s->recent[i];
        if (one->last_run != 0 && one->bucket == session->bucket &&
            memcmp(s->sizes + i * count, session->dims, bytes) == 0)
            return one;
        if (one->last_run < oldest->last_run)
            oldest = one;
    }
    if (oldest->graph != NULL)
        (void)driver.executable_free(oldest->graph);
    *oldest = (recent){.bucket = session->bucket};
    memcpy(s->sizes + (size_t)(oldest - s->recent) * count, session->dims, bytes);
    return oldest;
}

/* *graph: the graph for a run in a bucket that has none of its own; null: launch the steps. Not in
 * a capture of the caller, whose graph would outlive it, and not with libraries, which may ask for
 * memory whenever sizes change. */
static int recent_graph(state *s, const kiln_session *session, void **graph) {
    int result = CU_OK, capturing = 0;
    if (s->cuda->calls_count > 0)
        return CU_OK;
    if (s->stream != s->own)
        result = driver.stream_capturing(s->stream, &capturing);
    if (result != CU_OK || capturing != 0)
        return result;
    recent *one = entry_of(s, session);
    const bool again = one->last_run != 0;
    one->last_run = ++s->runs;
    if (again && one->graph == NULL && !one->no_memory) {
        void *const stream = s->stream;
        s->stream = s->own; /* nothing is put on it: the capture only notes the launches */
        result = capture_steps(s, session->bucket, &one->graph);
        s->stream = stream;
        one->no_memory = result == CU_OUT_OF_MEMORY;
        if (one->no_memory)
            result = CU_OK;
        if (result != CU_OK)
            one->graph = NULL;
    }
    *graph = one->graph;
    return result;
}

static kiln_status run_all(kiln_session *session) {
    state *s = session->gpu;
    int result = driver.context_push(s->shared->context);
    if (result != CU_OK)
        return check(session, result, 0);
    s->by_library = false;
    void *graph = s->graphs[session->bucket];
    if (graph == NULL)
        result = recent_graph(s, session, &graph);
    if (result == CU_OK)
        result = graph != NULL ? driver.graph_launch(graph, s->stream)
                               : launch_steps(s, session->bucket);
    if (result == CU_OK)
        result = end_run(s, session);
    (void)driver.context_pop(&(void *){NULL});
    return check_steps(session, s, result);
}

const kiln_gpu_functions kiln_cuda_functions = {
    .open = open_session,
    .close = close_session,
    .begin = begin_run,
    .step = run_step,
    .run = run_all,
};

int32_t kiln_cuda_launch(const kiln_frame *frame, uint32_t kernel, const uint32_t *grid_and_block,
                         const void *const *args, uint32_t count) {
    state *s = (state *)(void *)frame; /* the frame is the state's first member */
    void *parameters[MAX_ARGS];
    const uint32_t *size = grid_and_block;
    if (s->libraries_only || size[0] == 0 || size[1] == 0 || size[2] == 0) /* nothing to do */
        return 0;
    for (uint32_t i = 0; i < count && i < MAX_ARGS; i++)
        parameters[i] = (void *)&args[i];
    const uint32_t shared = s->cuda->dynamic_bytes != NULL ? s->cuda->dynamic_bytes[kernel] : 0;
    void *const function = s->shared->kernels[kernel];
    if (s->shared->early && s->cuda->waits[kernel] != 0) {
        cuda_launch_attribute early = {.id = CU_EARLY_LAUNCH, .value = {1}};
        const cuda_launch launch = {.grid = {size[0], size[1], size[2]},
                                    .block = {size[3], size[4], size[5]},
                                    .shared = shared,
                                    .stream = s->stream,
                                    .attributes = &early,
                                    .count = 1};
        s->failed = driver.launch_with(&launch, function, parameters, NULL);
    } else {
        s->failed = driver.launch(function, size[0], size[1], size[2], size[3], size[4], size[5],
                                  shared, s->stream, parameters, NULL);
    }
    return s->failed == CU_OK ? 0 : -1;
}

int32_t kiln_cuda_compute(const kiln_frame *frame, uint32_t call, uint32_t library,
                          kiln_cuda_function *function, const void *const *args) {
    state *s = (state *)(void *)frame;
    kiln_cuda_call *one = &s->calls[call];
    one->stream = s->stream;
    one->handle = s->handles[library];
    one->library = library + 1;
    s->failed = function(one, args);
    s->by_library = s->failed != 0;
    s->library_text = one->text;
    return s->failed == 0 ? 0 : -1;
}

/* ---- a run without a wait ----------------------------------------------------------------------
 */

/* KILN_OK where the session can be asked for a run; else what is wrong. */
static kiln_status check_session(kiln_session *session, const DLTensor *inputs,
                                 const DLTensor *outputs) {
    if (session == NULL || session->model == NULL || session->in_on_step)
        return kiln_begin(session, inputs, outputs); /* it says what is wrong */
    return session->model->gpu == &kiln_cuda_functions
               ? KILN_OK
               : fail(session, KILN_WRONG_MODEL, NULL, 0, 0);
}

/* The conversion of input i, which must be pinned or on this GPU, and not where it is converted to.
 */
static kiln_status conversion_of(kiln_session *session, const state *s, uint32_t i,
                                 const DLTensor *given, const kiln_cuda_scaling *scaling,
                                 kiln_cuda_conversion *conversion) {
    const DLDevice device = given->device;
    const uint64_t begin = (uintptr_t)s->tensors[0].data;
    const uint64_t end = (uintptr_t)s->tensors[s->model->inputs_count - 1].data +
                         s->cuda->tensor_bytes[s->model->inputs_count - 1];
    kiln_detail error = {.status = KILN_BAD_DEVICE,
                         .where = KILN_AT_INPUT,
                         .name = s->model->inputs[i].name,
                         .index = (int32_t)i,
                         .axis = -1,
                         .value = device.device_type,
                         .min = kDLCUDA,
                         .max = kDLCUDAHost};
    if (device.device_type != kDLCUDA && device.device_type != kDLCUDAHost)
        return kiln_fail(&session->detail, &error);
    error.status = KILN_BAD_GPU;
    error.value = device.device_id;
    error.min = error.max = s->gpu;
    if (device.device_type == kDLCUDA && device.device_id != s->gpu)
        return kiln_fail(&session->detail, &error);
    error.status = kiln_cuda_conversion_of(given, scaling, (uintptr_t)s->tensors[i].data,
                                           device.device_type == kDLCUDAHost, conversion, &error);
    if (error.status == KILN_OK && conversion->from >= begin && conversion->from < end) {
        error.status = KILN_OVERLAP;
        error.value = -1;
    }
    return error.status == KILN_OK ? KILN_OK : kiln_fail(&session->detail, &error);
}

/* Copy a pinned input to the GPU, and launch its conversion; returns a CUresult. */
static int convert(state *s, const kiln_cuda_conversion *whole, const kiln_cuda_scaling *scaling,
                   bool pinned) {
    kiln_cuda_conversion source = *whole, part;
    void *parameters[] = {&part};
    void *const function = s->shared->kernels[s->cuda->conversion - 1];
    int result = CU_OK;
    if (whole->count > 0 && pinned) {
        source.from = (uintptr_t)s->frame.arena;
        result = driver.copy_in(source.from, (const void *)(uintptr_t)whole->from,
                                (size_t)whole->count * (whole->is_half != 0 ? 2 : 1), s->stream);
    }
    for (uint32_t first = 0; result == CU_OK && source.count > 0 && first < source.channels;) {
        first += kiln_cuda_conversion_part(&source, scaling, first, &part);
        const uint64_t blocks =
            (part.count + KILN_CONVERSION_THREADS - 1) / KILN_CONVERSION_THREADS;
        result = driver.launch(function, (unsigned)blocks, 1, 1, KILN_CONVERSION_THREADS, 1, 1, 0,
                               s->stream, parameters, NULL);
    }
    return result;
}

/* After kiln_begin: convert the inputs whose given tensor the model does not take. */
static kiln_status convert_all(kiln_session *session, state *s, const DLTensor *inputs,
                               const kiln_cuda_scaling *scalings) {
    kiln_cuda_conversion conversion;
    int result = driver.context_push(s->shared->context);
    if (result != CU_OK)
        return check(session, result, 0);
    for (uint32_t i = 0; result == CU_OK && i < s->model->inputs_count; i++) {
        if (!kiln_cuda_converts(&s->model->inputs[i], &inputs[i]))
            continue;
        (void)conversion_of(session, s, i, &inputs[i], &scalings[i], &conversion); /* checked */
        result = convert(s, &conversion, &scalings[i], inputs[i].device.device_type == kDLCUDAHost);
    }
    (void)driver.context_pop(&(void *){NULL});
    return check(session, result, 0);
}

kiln_status kiln_cuda_enqueue(kiln_session *session, const DLTensor *inputs,
                              const DLTensor *outputs) {
    kiln_status status = check_session(session, inputs, outputs);
    if (status != KILN_OK)
        return status;
    state *s = session->gpu;
    s->wait = false;
    status = kiln_begin(session, inputs, outputs);
    if (status == KILN_OK)
        status = run_all(session);
    s->wait = true;
    kiln_cancel(session);
    return status;
}

kiln_status kiln_cuda_enqueue_scaled(kiln_session *session, const DLTensor *inputs,
                                     const DLTensor *outputs, const kiln_cuda_scaling *scalings) {
    kiln_status status = check_session(session, inputs, outputs);
    if (status != KILN_OK)
        return status;
    if ((inputs == NULL || scalings == NULL) && session->model->inputs_count > 0)
        return kiln_fail_plain(&session->detail, KILN_NULL_ARGUMENT);
    state *s = session->gpu;
    const kiln_model *model = s->model;
    kiln_plan_result plan;
    kiln_cuda_conversion conversion;
    for (uint32_t i = 0; i < model->inputs_count; i++) {
        s->given[i] = inputs[i];
        if (!kiln_cuda_converts(&model->inputs[i], &inputs[i]))
            continue;
        s->given[i].data = s->tensors[i].data;
        s->given[i].device = (DLDevice){kDLCUDA, s->gpu};
        s->given[i].dtype = model->inputs[i].dtype;
        s->given[i].strides = NULL;
        s->given[i].byte_offset = 0;
    }
    status = kiln_plan(model, s->given, &plan, &session->detail);
    for (uint32_t i = 0; status == KILN_OK && i < model->inputs_count; i++)
        if (kiln_cuda_converts(&model->inputs[i], &inputs[i]))
            status = conversion_of(session, s, i, &inputs[i], &scalings[i], &conversion);
    if (status != KILN_OK)
        return status;
    s->wait = false;
    status = kiln_begin(session, s->given, outputs);
    if (status == KILN_OK)
        status = convert_all(session, s, inputs, scalings);
    if (status == KILN_OK)
        status = run_all(session);
    s->wait = true;
    kiln_cancel(session);
    return status;
}

/* ---- questions ---------------------------------------------------------------------------------
 */

static const state *state_of(const kiln_session *session) {
    const bool open =
        session != NULL && session->model != NULL && session->model->gpu == &kiln_cuda_functions;
    return open ? session->gpu : NULL;
}

void *kiln_cuda_input(const kiln_session *session, uint32_t index) {
    const state *s = state_of(session);
    return s != NULL && index < s->model->inputs_count ? s->tensors[index].data : NULL;
}

void *kiln_cuda_output(const kiln_session *session, uint32_t index) {
    const state *s = state_of(session);
    return s != NULL && index < s->model->outputs_count
               ? s->tensors[s->model->inputs_count + index].data
               : NULL;
}

void *kiln_cuda_stream(const kiln_session *session) {
    const state *s = state_of(session);
    return s != NULL ? s->stream : NULL;
}
