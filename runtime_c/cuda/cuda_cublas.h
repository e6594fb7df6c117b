/* cuda_cublas.h: a product that NVIDIA's cuBLASLt computes, for the C that Kiln generates. */
#ifndef KILN_CUDA_CUBLAS_H
#define KILN_CUDA_CUBLAS_H

#include "kiln_cuda.h"

#define KILN_CUBLAS_DYNAMIC (-1) /* a size that is an argument */
#define KILN_CUBLAS_FLOAT   0    /* CUDA_R_32F */
#define KILN_CUBLAS_HALF    2    /* CUDA_R_16F; sums are float32 */
#define KILN_CUBLAS_BRAIN   14   /* CUDA_R_16BF; sums are float32 */

/* y[b] = f(x[b] w[b] + residual[b] + bias), all row-major: x (rows, depth), y and residual (rows,
 * columns), w (depth, columns) or, `inside`, (columns, depth). f: nothing, or ReLU. */
typedef struct kiln_cublas_product {
    int32_t type; /* of all of them: KILN_CUBLAS_FLOAT, …_HALF, …_BRAIN */
    int32_t rows, columns, depth, batch; /* or KILN_CUBLAS_DYNAMIC */
    bool tf32;                           /* floats are rounded to it where they are multiplied */
    bool inside, bias, residual, relu;
    size_t workspace_bytes;
} kiln_cublas_product;

/* args: x, w, the bias, the residual, y, the workspace, the dynamic sizes in the order above. */
int32_t kiln_cublas_compute(kiln_cuda_call *call, const kiln_cublas_product *product,
                            const void *const *args);

extern const kiln_cuda_library kiln_library_cublas;

#endif
