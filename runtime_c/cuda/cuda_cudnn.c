/* cuda_cudnn.c: convolutions by NVIDIA's cuDNN, which is loaded when a session is opened.
 *
 * The part of its API that is used is declared here, by the names and numbers of its ABI (cuDNN API
 * reference, 9.x), so that neither its headers nor the library are needed to build or to start. It
 * is the API of cudnnConvolutionBiasActivationForward, which cuDNN 9 calls deprecated but has: one
 * call instead of a graph that is built. The algorithm is the first of its heuristic's that fits
 * into the workspace; with dynamic sizes it is asked again when they change. Sums are float32.
 * Floats are multiplied as such with CUDNN_FMA_MATH; by default cuDNN may round them to tf32. With
 * CUDNN_TENSOR_OP_MATH tensor cores may multiply 16 bits, on GPUs before sm_80 too.
 */
#include "cuda_cudnn.h"

#include <string.h>

#include "cuda_library.h"

enum {
    NOT_SUPPORTED = 3000,
    NHWC = 1,
    CROSS_CORRELATION = 1,
    DEFAULT_MATH = 0,
    TENSOR_OP_MATH = 1,
    FMA_MATH = 3,
    RELU = 1,
    IDENTITY = 5,
    PROPAGATE_NAN = 1,
    PRECOMPUTED = 1, /* CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM */
    ALGORITHMS = 8
};

typedef struct suggestion {
    int32_t algorithm, status;
    float milliseconds;
    size_t workspace_bytes;
    int32_t determinism, math, reserved[3];
} suggestion;

/* F(member, symbol, parameters): each returns a cudnnStatus_t. */
#define FUNCTIONS(F)                                                                               \
    F(create, "cudnnCreate", (void **handle))                                                      \
    F(destroy, "cudnnDestroy", (void *handle))                                                     \
    F(set_stream, "cudnnSetStream", (void *handle, void *stream))                                  \
    F(tensor_create, "cudnnCreateTensorDescriptor", (void **tensor))                               \
    F(tensor_set, "cudnnSetTensor4dDescriptor",                                                    \
      (void *tensor, int format, int type, int n, int c, int h, int w))                            \
    F(tensor_destroy, "cudnnDestroyTensorDescriptor", (void *tensor))                              \
    F(filter_create, "cudnnCreateFilterDescriptor", (void **filter))                               \
    F(filter_set, "cudnnSetFilter4dDescriptor",                                                    \
      (void *filter, int type, int format, int k, int c, int h, int w))                            \
    F(filter_destroy, "cudnnDestroyFilterDescriptor", (void *filter))                              \
    F(convolution_create, "cudnnCreateConvolutionDescriptor", (void **convolution))                \
    F(convolution_set, "cudnnSetConvolution2dDescriptor",                                          \
      (void *convolution, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,        \
       int dilation_w, int mode, int type))                                                        \
    F(convolution_set_math, "cudnnSetConvolutionMathType", (void *convolution, int math))          \
    F(convolution_destroy, "cudnnDestroyConvolutionDescriptor", (void *convolution))               \
    F(activation_create, "cudnnCreateActivationDescriptor", (void **activation))                   \
    F(activation_set, "cudnnSetActivationDescriptor",                                              \
      (void *activation, int mode, int nan, double coefficient))                                   \
    F(activation_destroy, "cudnnDestroyActivationDescriptor", (void *activation))                  \
    F(suggest, "cudnnGetConvolutionForwardAlgorithm_v7",                                           \
      (void *handle, void *x, void *w, void *convolution, void *y, int wanted, int *count,         \
       suggestion *found))                                                                         \
    F(convolve, "cudnnConvolutionBiasActivationForward",                                           \
      (void *handle, const void *alpha1, void *of_x, const void *x, void *of_w, const void *w,     \
       void *convolution, int algorithm, void *workspace, size_t workspace_bytes,                  \
       const void *alpha2, void *of_z, const void *z, void *of_bias, const void *bias,             \
       void *activation, void *of_y, void *y))

static struct {
    FUNCTIONS(KILN_CUDA_MEMBER)
    const char *(*text)(int status);
} dnn;

enum {
    BATCH,
    HEIGHT,
    WIDTH,
    ROWS,
    COLUMNS,
    OPEN_SIZES
};

/* A call's state. */
typedef struct made {
    void *x, *w, *y, *bias, *convolution, *activation;
    size_t workspace_bytes;
    int32_t algorithm;
    int32_t sizes[OPEN_SIZES];
} made;
_Static_assert(sizeof(made) <= sizeof((kiln_cuda_call *)0)->state, "it is stored in the call");

static int32_t open_library(void **handle, const char **text) {
    static const char *const symbols[] = {FUNCTIONS(KILN_CUDA_SYMBOL) "cudnnGetErrorString"};
    static kiln_cuda_loader loader = {.file = "libcudnn.so.9",
                                      .symbols = symbols,
                                      .functions = &dnn,
                                      .count = sizeof symbols / sizeof symbols[0]};
    _Static_assert(sizeof symbols == sizeof dnn, "a function is an address");
    if (!kiln_cuda_load(&loader, text))
        return -1;
    const int32_t status = dnn.create(handle);
    if (status != 0)
        *text = dnn.text(status);
    return status;
}

static void close_library(void *handle) {
    (void)dnn.destroy(handle);
}

static void release(kiln_cuda_call *call) {
    made *m = (made *)(void *)call->state;
    void *const tensors[] = {m->x, m->y, m->bias};
    for (int i = 0; i < 3; i++)
        if (tensors[i] != NULL)
            (void)dnn.tensor_destroy(tensors[i]);
    if (m->w != NULL)
        (void)dnn.filter_destroy(m->w);
    if (m->convolution != NULL)
        (void)dnn.convolution_destroy(m->convolution);
    if (m->activation != NULL)
        (void)dnn.activation_destroy(m->activation);
    memset(m, 0, sizeof *m);
}

static int make_tensor(void **tensor, int type, int n, int h, int w, int c) {
    const int status = dnn.tensor_create(tensor);
    return status == 0 ? dnn.tensor_set(*tensor, NHWC, type, n, c, h, w) : status;
}

/* The first algorithm that fits. Without an activation only one of them can add a bias. */
static int choose(const kiln_cuda_call *call, const kiln_cudnn_convolution *p, made *m) {
    suggestion found[ALGORITHMS];
    int count = 0;
    const int status =
        dnn.suggest(call->handle, m->x, m->w, m->convolution, m->y, ALGORITHMS, &count, found);
    if (status != 0)
        return status;
    for (int i = 0; i < count; i++)
        if (found[i].status == 0 && found[i].workspace_bytes <= p->workspace_bytes &&
            (p->relu || found[i].algorithm == PRECOMPUTED)) {
            m->algorithm = found[i].algorithm;
            m->workspace_bytes = found[i].workspace_bytes;
            return 0;
        }
    return NOT_SUPPORTED;
}

/* Descriptors, and the algorithm, for the sizes in `m`. */
static int make(const kiln_cuda_call *call, const kiln_cudnn_convolution *p, made *m) {
    const int32_t *size = m->sizes;
    int status = make_tensor(&m->x, p->type, size[BATCH], size[HEIGHT], size[WIDTH], p->channels);
    if (status == 0)
        status = make_tensor(&m->y, p->type, size[BATCH], size[ROWS], size[COLUMNS], p->filters);
    if (status == 0)
        status = make_tensor(&m->bias, p->type, 1, 1, 1, p->filters);
    if (status == 0)
        status = dnn.filter_create(&m->w);
    if (status == 0)
        status = dnn.filter_set(m->w, p->type, NHWC, p->filters, p->channels, p->filter_height,
                                p->filter_width);
    if (status == 0)
        status = dnn.convolution_create(&m->convolution);
    if (status == 0)
        status = dnn.convolution_set(m->convolution, p->padding[0], p->padding[1], p->stride[0],
                                     p->stride[1], p->dilation[0], p->dilation[1],
                                     CROSS_CORRELATION, KILN_CUDNN_FLOAT);
    if (status == 0)
        status =
            dnn.convolution_set_math(m->convolution, p->type != KILN_CUDNN_FLOAT ? TENSOR_OP_MATH
                                                     : p->tf32                   ? DEFAULT_MATH
                                                                                 : FMA_MATH);
    if (status == 0)
        status = dnn.activation_create(&m->activation);
    if (status == 0)
        status = dnn.activation_set(m->activation, p->relu ? RELU : IDENTITY, PROPAGATE_NAN, 0);
    return status == 0 ? choose(call, p, m) : status;
}

int32_t kiln_cudnn_compute(kiln_cuda_call *call, const kiln_cudnn_convolution *p,
                           const void *const *args) {
    made *m = (made *)(void *)call->state;
    const void *const *next = args;
    const void *const x = *next++, *const w = *next++, *const bias = *next++;
    const void *const residual = p->residual ? *next++ : NULL;
    void *const y = (void *)*next++, *const workspace = (void *)*next++;
    int32_t sizes[OPEN_SIZES] = {p->batch, p->height, p->width, p->rows, p->columns};
    const float one = 1, alpha2 = p->residual ? 1 : 0;
    for (int i = 0; i < OPEN_SIZES; i++)
        if (sizes[i] == KILN_CUDNN_DYNAMIC)
            sizes[i] = (int32_t)(intptr_t)*next++;
    int status = 0;
    if (m->activation == NULL || memcmp(m->sizes, sizes, sizeof sizes) != 0) {
        release(call);
        memcpy(m->sizes, sizes, sizeof sizes);
        status = make(call, p, m);
        if (status != 0)
            release(call); /* half made: the next call tries again */
    }
    if (status == 0)
        status = dnn.set_stream(call->handle, call->stream);
    if (status == 0)
        status =
            dnn.convolve(call->handle, &one, m->x, x, m->w, w, m->convolution, m->algorithm,
                         workspace, m->workspace_bytes, &alpha2, m->y,
                         residual != NULL ? residual : y, m->bias, bias, m->activation, m->y, y);
    if (status != 0)
        call->text = dnn.text(status);
    return status;
}

const kiln_cuda_library kiln_library_cudnn = {open_library, close_library, release};
