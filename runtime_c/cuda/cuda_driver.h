/* cuda_driver.h: the part of NVIDIA's driver API that gpu_cuda.c uses, by the names of its ABI.
 *
 * Declared here, so that neither CUDA's headers nor its libraries are needed to build or to start:
 * the functions are looked up in libcuda.so.1 at run time. Numbers and names are those of the CUDA
 * Driver API's documentation (13.x); all are there since CUDA 12.0.
 */
#ifndef KILN_CUDA_DRIVER_H
#define KILN_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_library.h"

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_NO_BINARY = 209,
    CU_INVALID_PTX = 218,
    CU_NO_PTX_COMPILER = 221,
    CU_PTX_VERSION = 222, /* of a newer toolkit than the driver */
    CU_PTX_DISABLED = 223,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_NO_TIMES = 2,
    CU_DYNAMIC_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    CU_CAPTURE_RELAXED = 2,
    CU_EARLY_LAUNCH = 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
};

/* CUlaunchAttribute: a number, and a value of 64 bytes that begins with an int. */
typedef struct cuda_launch_attribute {
    int id, gap;
    int value[16];
} cuda_launch_attribute;

/* CUlaunchConfig. */
typedef struct cuda_launch {
    unsigned grid[3], block[3], shared;
    void *stream;
    cuda_launch_attribute *attributes;
    unsigned count;
} cuda_launch;
_Static_assert(sizeof(cuda_launch_attribute) == 72 && sizeof(cuda_launch) == 56, "CUDA's ABI");

#define CU_DEFAULT_STREAM ((void *)1) /* CU_STREAM_LEGACY */

/* F(member, symbol, parameters): every function returns a CUresult. */
#define CU_FUNCTIONS(F)                                                                            \
    F(init, "cuInit", (unsigned flags))                                                            \
    F(error_text, "cuGetErrorString", (int result, const char **text))                             \
    F(device_count, "cuDeviceGetCount", (int *count))                                              \
    F(device_get, "cuDeviceGet", (int *device, int number))                                        \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))           \
    F(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                    \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    F(context_push, "cuCtxPushCurrent_v2", (void *context))                                        \
    F(context_pop, "cuCtxPopCurrent_v2", (void **context))                                         \
    F(module_load, "cuModuleLoadData", (void **module, const void *image))                         \
    F(module_unload, "cuModuleUnload", (void *module))                                             \
    F(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name))   \
    F(function_attribute, "cuFuncSetAttribute", (void *function, int attribute, int value))        \
    F(alloc, "cuMemAlloc_v2", (uint64_t * address, size_t bytes))                                  \
    F(free, "cuMemFree_v2", (uint64_t address))                                                    \
    F(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                 \
    F(host_free, "cuMemFreeHost", (void *memory))                                                  \
    F(zero, "cuMemsetD8Async", (uint64_t to, unsigned char value, size_t bytes, void *stream))     \
    F(copy_in, "cuMemcpyHtoDAsync_v2",                                                             \
      (uint64_t to, const void *from, size_t bytes, void *stream))                                 \
    F(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, uint64_t from, size_t bytes, void *stream))     \
    F(copy_across, "cuMemcpyDtoDAsync_v2",                                                         \
      (uint64_t to, uint64_t from, size_t bytes, void *stream))                                    \
    F(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                            \
    F(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                        \
    F(stream_wait, "cuStreamSynchronize", (void *stream))                                          \
    F(stream_capturing, "cuStreamIsCapturing", (void *stream, int *capturing))                     \
    F(stream_after, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))              \
    F(event_create, "cuEventCreate", (void **event, unsigned flags))                               \
    F(event_destroy, "cuEventDestroy_v2", (void *event))                                           \
    F(event_record, "cuEventRecord", (void *event, void *stream))                                  \
    F(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                          \
    F(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                             \
    F(graph_make, "cuGraphInstantiateWithFlags",                                                   \
      (void **executable, void *graph, unsigned long long flags))                                  \
    F(graph_upload, "cuGraphUpload", (void *executable, void *stream))                             \
    F(graph_launch, "cuGraphLaunch", (void *executable, void *stream))                             \
    F(graph_free, "cuGraphDestroy", (void *graph))                                                 \
    F(executable_free, "cuGraphExecDestroy", (void *executable))                                   \
    F(launch_with, "cuLaunchKernelEx",                                                             \
      (const cuda_launch *launch, void *function, void **parameters, void **extra))                \
    F(launch, "cuLaunchKernel",                                                                    \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,       \
       void **extra))

typedef struct cuda_driver {
    CU_FUNCTIONS(KILN_CUDA_MEMBER)
} cuda_driver;

#endif
