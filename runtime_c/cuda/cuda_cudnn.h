/* cuda_cudnn.h: a convolution that NVIDIA's cuDNN computes, for the C that Kiln generates. */
#ifndef KILN_CUDA_CUDNN_H
#define KILN_CUDA_CUDNN_H

#include "kiln_cuda.h"

#define KILN_CUDNN_DYNAMIC (-1) /* a size that is an argument */
#define KILN_CUDNN_FLOAT   0    /* CUDNN_DATA_FLOAT */
#define KILN_CUDNN_HALF    2    /* CUDNN_DATA_HALF; sums are float32 */
#define KILN_CUDNN_BRAIN   9    /* CUDNN_DATA_BFLOAT16; sums are float32 */

/* y = f(x * w + residual + bias): x (batch, height, width, channels), w (filters, filter height,
 * filter width, channels), y and residual (batch, rows, columns, filters). f: nothing, or ReLU. */
typedef struct kiln_cudnn_convolution {
    int32_t type; /* of all tensors: KILN_CUDNN_FLOAT, …_HALF, …_BRAIN */
    bool tf32;    /* floats are rounded to it where they are multiplied */
    int32_t batch, height, width, rows, columns; /* or KILN_CUDNN_DYNAMIC */
    int32_t channels, filters, filter_height, filter_width;
    int32_t padding[2], stride[2], dilation[2]; /* along the height, the width */
    bool residual, relu;
    size_t workspace_bytes;
} kiln_cudnn_convolution;

/* args: x, w, the bias, the residual, y, the workspace, the dynamic sizes in the order above. */
int32_t kiln_cudnn_compute(kiln_cuda_call *call, const kiln_cudnn_convolution *convolution,
                           const void *const *args);

extern const kiln_cuda_library kiln_library_cudnn;

#endif
