/* kiln_cuda.h: a model whose kernels run on an NVIDIA GPU. Programs are written as for a CPU:
 *
 *     kiln_session session;
 *     kiln_config config = {.gpu = 0};
 *     if (kiln_open(&session, &resnet, &config) != KILN_OK)
 *         return 1;
 *     kiln_status status = resnet_run(&session, image, scores);
 *     kiln_close(&session);
 *
 * The driver, libcuda.so.1, is loaded by the first kiln_open: a program starts without a GPU, and
 * kiln_open returns an error. There a session allocates by the driver: memory on the GPU for the
 * arena, inputs and outputs, pinned memory for what is copied, a stream, and a CUDA graph for each
 * bucket whose launches are always the same. In a bucket with dynamic shapes the second run of the
 * same sizes makes a graph; those of the eight sizes used last are kept, except where libraries
 * compute steps. Parameters are uploaded once for all sessions of a
 * model on one GPU. A run copies the inputs, launches the graph or the kernels, copies the outputs
 * and waits; kiln_close releases everything.
 *
 * Tensors may be in this processor's memory, pinned (kDLCUDAHost) or on the session's GPU
 * (kDLCUDA). An input at the address of kiln_cuda_input is not copied, nor an output at the
 * address of kiln_cuda_output.
 *
 * Order: config.gpu_stream is the stream of a caller who uses the GPU too. All work of a run is put
 * on it, after what is there already and before what is put there later. Without it a session has a
 * stream of its own: a run with a tensor on the GPU starts after all work that was put on the
 * default stream, or on a stream that synchronises with that one (CU_STREAM_DEFAULT), before
 * kiln_run or kiln_begin was called; a caller with other streams (CU_STREAM_NON_BLOCKING) gives the
 * stream, or waits for it before the run. When kiln_run returns, its results may be read from any
 * stream.
 *
 * An error of a kernel (an illegal address, a trap) stays: from then on the driver answers each
 * call of this process on that GPU with the same error, also calls of other libraries, and only a
 * new process can use the GPU again. kiln_close returns as always.
 */
#ifndef KILN_CUDA_H
#define KILN_CUDA_H

#include <stdbool.h>

#include "kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_CUDA_GPUS 16 /* of one process */

/* The session's own memory on the GPU for an input or output, of the greatest size that it can
 * have; null where there is none. It stays until kiln_close, and holds an output until the next
 * run. */
void *kiln_cuda_input(const kiln_session *session, uint32_t index);
void *kiln_cuda_output(const kiln_session *session, uint32_t index);

/* The CUstream that runs are put on: config.gpu_stream, or the session's own. Null where the
 * session is not open. */
void *kiln_cuda_stream(const kiln_session *session);

/* Put a run on the stream and return without waiting for it. All tensors must be pinned or on the
 * GPU (else KILN_BAD_DEVICE), and stay until the stream has passed the run; the arrays `inputs` and
 * `outputs` need not. Runs of one session are done one after the other. on_step is not called. An
 * error on the GPU is returned by a later call, or by the call that waits for the stream. */
kiln_status kiln_cuda_enqueue(kiln_session *session, const DLTensor *inputs,
                              const DLTensor *outputs);

/* What the elements of an input stand for: element * scale + offset, in float32 and rounded once.
 * For a model that takes (pixel * factor - mean) / deviation, `scale` is factor / deviation and
 * `offset` is -mean / deviation. */
typedef struct kiln_cuda_scaling {
    uint32_t count; /* 0: the elements as they are; 1: the same for all elements; else one pair for
                       each index of `axis`, which has this size */
    int32_t axis;
    const float *scale;  /* (count) */
    const float *offset; /* (count) or null: 0 */
} kiln_cuda_scaling;

/* The same with inputs of uint8 or float16 where the model takes float32: a kernel on the stream
 * converts them, in the order of kiln_cuda_enqueue; only their own bytes are copied. The dtype of a
 * tensor says what it is, and scalings[i] what the elements of input i stand for; it is not read
 * for an input that the model takes as it is. Converted inputs have the model's shape, may have
 * strides (an image in rows of pixels, for a model that takes channels first, has the strides {3 *
 * height * width, 1, 3 * width, 3}), and must be pinned, without gaps between the elements, or on
 * the session's GPU, elsewhere than at kiln_cuda_input. The arrays `scalings`, `scale` and `offset`
 * need not stay. Other dtypes than these are refused (KILN_BAD_DTYPE); scalings or a scale that is
 * null is KILN_NULL_ARGUMENT, an axis that the input lacks KILN_BAD_RANK, one of another size than
 * `count` KILN_BAD_SHAPE. */
kiln_status kiln_cuda_enqueue_scaled(kiln_session *session, const DLTensor *inputs,
                                     const DLTensor *outputs, const kiln_cuda_scaling *scalings);

/* ---- for generated plans ----------------------------------------------------------------------
 */

/* Data that all sessions of a model on one GPU share; zeros at first. Written under a lock. */
typedef struct kiln_cuda_shared {
    uint32_t sessions;
    int32_t device;       /* CUdevice */
    void *context;        /* CUcontext, the device's primary one */
    void **modules;       /* (modules_count) CUmodule */
    uint64_t params;      /* CUdeviceptr */
    void *const *kernels; /* (kernels_count) CUfunction */
    bool early;           /* kernels that wait themselves are launched early */
} kiln_cuda_shared;

#define KILN_CUDA_LIBRARIES  4  /* that one model may call */
#define KILN_CUDA_CALL_WORDS 24 /* of state */

/* A step that a library computes, in one session. Its function puts the step's work on the stream,
 * and returns 0 or the library's own status. Before a bucket's graph is captured, each of the
 * bucket's calls is made once outside of the capture, with memory of zeros: libraries load code and
 * ask for memory in their first call, which a capture does not permit. */
typedef struct kiln_cuda_call {
    void *stream;     /* CUstream for this call */
    void *handle;     /* the library's handle for the session */
    const char *text; /* out: the library's text for the status */
    uint64_t
        state[KILN_CUDA_CALL_WORDS]; /* the function's own: zeros at first, kept between calls */
    uint32_t library;                /* number of the library plus 1; 0: not called yet */
} kiln_cuda_call;

typedef int32_t kiln_cuda_function(kiln_cuda_call *call, const void *const *args);

/* A library that is loaded at run time. The context is current in each call. */
typedef struct kiln_cuda_library {
    /* Load it, once in a process, and make the session's handle; 0, its own status, or -1 where it
     * cannot be loaded; *text: its words, or the loader's. */
    int32_t (*open)(void **handle, const char **text);
    void (*close)(void *handle);
    void (*release)(kiln_cuda_call *call); /* release the call's state */
} kiln_cuda_library;

typedef struct kiln_cuda_model {
    const void *const *images; /* (modules_count) fatbins, each loaded as a module of its own */
    uint32_t modules_count;
    uint32_t kernels_count;
    const char *archs;             /* architectures of the images, such as "sm_75, sm_90" */
    const char *const *kernels;    /* (kernels_count) names */
    const uint32_t *module_of;     /* (kernels_count) each kernel's module; null: the first */
    const uint32_t *dynamic_bytes; /* (kernels_count) shared memory of a block that its launch
                                      asks for besides what its code declares; null: none */
    const size_t *arena_bytes;     /* (buckets of the model) on the GPU */
    const size_t *tensor_bytes;    /* (inputs, then outputs) at their greatest */
    const uint8_t *has_graph;      /* (buckets) 0: its launches depend on the sizes of a run */
    kiln_cuda_shared *shared;      /* (KILN_CUDA_GPUS) */
    void **functions;              /* (KILN_CUDA_GPUS * kernels_count) */
    void **modules;                /* (KILN_CUDA_GPUS * modules_count) null at first */
    const kiln_cuda_library *const *libraries; /* (libraries_count) or null */
    uint32_t libraries_count;                  /* at most KILN_CUDA_LIBRARIES */
    uint32_t calls_count;                      /* steps that they compute, of all buckets */
    const uint8_t *waits; /* (kernels_count) 1: the kernel waits itself for the launches before it,
                             where its code is for a GPU of `waits_on`; null: none does */
    const uint32_t *waits_on; /* architectures such as 90; ends with 0 */
    uint32_t conversion;      /* number of the kernel that converts inputs, plus 1; 0: none */
} kiln_cuda_model;

extern const kiln_gpu_functions kiln_cuda_functions;

/* Launch a kernel on the stream of the session whose frame this is. 0, or -1. */
int32_t kiln_cuda_launch(const kiln_frame *frame, uint32_t kernel, const uint32_t *grid_and_block,
                         const void *const *args, uint32_t count);

/* Have a library compute a step: the number of the call, of 0..calls_count - 1, and of the library.
 * 0, or -1. */
int32_t kiln_cuda_compute(const kiln_frame *frame, uint32_t call, uint32_t library,
                          kiln_cuda_function *function, const void *const *args);

#ifdef __cplusplus
}
#endif
#endif
