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
 * is told so. What a session needs is asked of the driver there: memory on the GPU for the arena,
 * inputs and outputs, pinned memory for what is copied, a stream, and a CUDA graph for each bucket
 * whose launches are always the same. Parameters are uploaded once for all sessions of a model on
 * one GPU. A run copies the inputs, launches the graph or the kernels, copies the outputs and
 * waits; kiln_close gives everything back.
 *
 * Tensors may be in this processor's memory, pinned (kDLCUDAHost) or on the session's GPU
 * (kDLCUDA). What is already where kiln_cuda_input says is not copied, nor an output that is to
 * stay where kiln_cuda_output says.
 */
#ifndef KILN_CUDA_H
#define KILN_CUDA_H

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

/* The session's CUstream: what was put there before kiln_run is done before the run. Or null. */
void *kiln_cuda_stream(const kiln_session *session);

/* ---- for generated plans ----------------------------------------------------------------------
 */

/* What the sessions of a model on one GPU share; all zeros at first. Written under a lock. */
typedef struct kiln_cuda_shared {
    uint32_t sessions;
    int32_t device;       /* CUdevice */
    void *context;        /* CUcontext, the device's primary one */
    void *module;         /* CUmodule */
    uint64_t params;      /* CUdeviceptr */
    void *const *kernels; /* (kernels_count) CUfunction */
} kiln_cuda_shared;

typedef struct kiln_cuda_model {
    const void *image;          /* fatbin */
    const char *archs;          /* what is in it, such as "sm_75, sm_90" */
    const char *const *kernels; /* (kernels_count) names */
    uint32_t kernels_count;
    const size_t *arena_bytes;  /* (buckets of the model) on the GPU */
    const size_t *tensor_bytes; /* (inputs, then outputs) at their greatest */
    const uint8_t *has_graph;   /* (buckets) 0: its launches depend on the sizes of a run */
    kiln_cuda_shared *shared;   /* (KILN_CUDA_GPUS) */
    void **functions;           /* (KILN_CUDA_GPUS * kernels_count) */
} kiln_cuda_model;

extern const kiln_gpu_functions kiln_cuda_functions;

/* Launch a kernel on the stream of the session whose frame this is. 0, or -1. */
int32_t kiln_cuda_launch(const kiln_frame *frame, uint32_t kernel, const uint32_t *grid_and_block,
                         const void *const *args, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
