/* cuda_cublas.c: products by NVIDIA's cuBLASLt, which is loaded when a session is opened.
 *
 * The part of its API that is used is declared here, by the names and numbers of its ABI (cuBLAS
 * Library documentation, 13.x), so that neither its headers nor the library are needed to build or
 * to start. It knows matrices by columns: a row-major y = x w is its y' = w' x'. The algorithm is
 * the first of the library's heuristic for the sizes and the workspace; with dynamic sizes the
 * heuristic is called again when they change.
 */
#include "cuda_cublas.h"

#include <string.h>

#include "cuda_library.h"

enum {
    NOT_SUPPORTED = 15,
    COMPUTE_32F = 68,
    COMPUTE_32F_TF32 = 77, /* CUBLAS_COMPUTE_32F_FAST_TF32 */
    REAL_32F = 0,
    TRANSPOSED = 1,
    DESC_TRANSPOSE_A = 3,
    DESC_EPILOGUE = 7,
    DESC_BIAS = 8,
    LAYOUT_BATCH_COUNT = 5,
    LAYOUT_BATCH_STRIDE = 6,
    PREFER_WORKSPACE = 1,
    PREFER_ALIGN_A = 5, /* B, C and D follow */
    EPILOGUE_PLAIN = 1,
    EPILOGUE_RELU = 2,
    EPILOGUE_BIAS = 4,
    ALIGN = 64 /* of tensors in the arena and of parameters */
};

typedef struct algorithm {
    uint64_t data[8];
} algorithm;

typedef struct suggestion {
    algorithm best;
    size_t workspace_bytes;
    int32_t status;
    float waves;
    int32_t reserved[4];
} suggestion;

/* F(member, symbol, parameters): each returns a cublasStatus_t. */
#define FUNCTIONS(F)                                                                               \
    F(create, "cublasLtCreate", (void **handle))                                                   \
    F(destroy, "cublasLtDestroy", (void *handle))                                                  \
    F(product_create, "cublasLtMatmulDescCreate", (void **product, int compute, int scale))        \
    F(product_destroy, "cublasLtMatmulDescDestroy", (void *product))                               \
    F(product_set, "cublasLtMatmulDescSetAttribute",                                               \
      (void *product, int attribute, const void *value, size_t bytes))                             \
    F(layout_create, "cublasLtMatrixLayoutCreate",                                                 \
      (void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                 \
    F(layout_destroy, "cublasLtMatrixLayoutDestroy", (void *layout))                               \
    F(layout_set, "cublasLtMatrixLayoutSetAttribute",                                              \
      (void *layout, int attribute, const void *value, size_t bytes))                              \
    F(preference_create, "cublasLtMatmulPreferenceCreate", (void **preference))                    \
    F(preference_destroy, "cublasLtMatmulPreferenceDestroy", (void *preference))                   \
    F(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                      \
      (void *preference, int attribute, const void *value, size_t bytes))                          \
    F(suggest, "cublasLtMatmulAlgoGetHeuristic",                                                   \
      (void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,          \
       int wanted, suggestion *found, int *count))                                                 \
    F(multiply, "cublasLtMatmul",                                                                  \
      (void *handle, void *product, const void *alpha, const void *a, void *of_a, const void *b,   \
       void *of_b, const void *beta, const void *c, void *of_c, void *d, void *of_d,               \
       const algorithm *how, void *workspace, size_t workspace_bytes, void *stream))

static struct {
    FUNCTIONS(KILN_CUDA_MEMBER)
    const char *(*text)(int status);
} lt;

/* A call's state. */
typedef struct made {
    void *product, *x, *w, *y;
    algorithm how;
    size_t workspace_bytes;
    int64_t rows, columns, depth, batch;
} made;
_Static_assert(sizeof(made) <= sizeof((kiln_cuda_call *)0)->state, "it is stored in the call");

static int32_t open_library(void **handle, const char **text) {
    static const char *const symbols[] = {FUNCTIONS(KILN_CUDA_SYMBOL) "cublasLtGetStatusString"};
    static kiln_cuda_loader loader = {.file = "libcublasLt.so.13",
                                      .symbols = symbols,
                                      .functions = &lt,
                                      .count = sizeof symbols / sizeof symbols[0]};
    _Static_assert(sizeof symbols == sizeof lt, "a function is an address");
    if (!kiln_cuda_load(&loader, text))
        return -1;
    const int32_t status = lt.create(handle);
    if (status != 0)
        *text = lt.text(status);
    return status;
}

static void close_library(void *handle) {
    (void)lt.destroy(handle);
}

static void release(kiln_cuda_call *call) {
    made *m = (made *)(void *)call->state;
    if (m->product != NULL)
        (void)lt.product_destroy(m->product);
    if (m->x != NULL)
        (void)lt.layout_destroy(m->x);
    if (m->w != NULL)
        (void)lt.layout_destroy(m->w);
    if (m->y != NULL)
        (void)lt.layout_destroy(m->y);
    memset(m, 0, sizeof *m);
}

static int make_layout(void **layout, int type, int64_t rows, int64_t columns, int64_t batch) {
    const int32_t count = (int32_t)batch;
    const int64_t stride = rows * columns;
    int status = lt.layout_create(layout, type, (uint64_t)rows, (uint64_t)columns, rows);
    if (status == 0 && batch > 1)
        status = lt.layout_set(*layout, LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (status == 0 && batch > 1)
        status = lt.layout_set(*layout, LAYOUT_BATCH_STRIDE, &stride, sizeof stride);
    return status;
}

static int suggest(const kiln_cuda_call *call, made *m, uint64_t workspace_bytes) {
    const uint32_t align = ALIGN;
    suggestion found;
    void *preference = NULL;
    int count = 0;
    int status = lt.preference_create(&preference);
    if (status == 0)
        status = lt.preference_set(preference, PREFER_WORKSPACE, &workspace_bytes,
                                   sizeof workspace_bytes);
    for (int i = 0; status == 0 && i < 4; i++)
        status = lt.preference_set(preference, PREFER_ALIGN_A + i, &align, sizeof align);
    if (status == 0)
        status = lt.suggest(call->handle, m->product, m->w, m->x, m->y, m->y, preference, 1, &found,
                            &count);
    if (status == 0 && count == 0)
        status = NOT_SUPPORTED;
    if (status == 0)
        status = found.status;
    if (status == 0) {
        m->how = found.best;
        m->workspace_bytes = found.workspace_bytes;
    }
    if (preference != NULL)
        (void)lt.preference_destroy(preference);
    return status;
}

/* Descriptors, and the algorithm, for the sizes in `m`. */
static int make(const kiln_cuda_call *call, const kiln_cublas_product *p, made *m,
                const void *bias) {
    const int32_t transposed = TRANSPOSED;
    const uint32_t epilogue = (p->bias || p->relu ? 0u : (uint32_t)EPILOGUE_PLAIN) |
                              (p->bias ? (uint32_t)EPILOGUE_BIAS : 0u) |
                              (p->relu ? (uint32_t)EPILOGUE_RELU : 0u);
    int status = lt.product_create(&m->product, p->tf32 ? COMPUTE_32F_TF32 : COMPUTE_32F, REAL_32F);
    if (status == 0 && p->inside)
        status = lt.product_set(m->product, DESC_TRANSPOSE_A, &transposed, sizeof transposed);
    if (status == 0)
        status = lt.product_set(m->product, DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (status == 0 && p->bias)
        status = lt.product_set(m->product, DESC_BIAS, &bias, sizeof bias);
    if (status == 0)
        status = p->inside ? make_layout(&m->w, p->type, m->depth, m->columns, m->batch)
                           : make_layout(&m->w, p->type, m->columns, m->depth, m->batch);
    if (status == 0)
        status = make_layout(&m->x, p->type, m->depth, m->rows, m->batch);
    if (status == 0)
        status = make_layout(&m->y, p->type, m->columns, m->rows, m->batch);
    return status == 0 ? suggest(call, m, p->workspace_bytes) : status;
}

int32_t kiln_cublas_compute(kiln_cuda_call *call, const kiln_cublas_product *p,
                            const void *const *args) {
    made *m = (made *)(void *)call->state;
    const void *const *next = args;
    const void *const x = *next++, *const w = *next++;
    const void *const bias = p->bias ? *next++ : NULL;
    const void *const residual = p->residual ? *next++ : NULL;
    void *const y = (void *)*next++, *const workspace = (void *)*next++;
    int64_t sizes[] = {p->rows, p->columns, p->depth, p->batch};
    const float one = 1, beta = p->residual ? 1 : 0;
    for (int i = 0; i < 4; i++)
        if (sizes[i] == KILN_CUBLAS_DYNAMIC)
            sizes[i] = (int64_t)(intptr_t)*next++;
    int status = 0;
    if (m->product == NULL || m->rows != sizes[0] || m->columns != sizes[1] ||
        m->depth != sizes[2] || m->batch != sizes[3]) {
        release(call);
        m->rows = sizes[0];
        m->columns = sizes[1];
        m->depth = sizes[2];
        m->batch = sizes[3];
        status = make(call, p, m, bias);
        if (status != 0) {
            release(call); /* half made: the next call tries again */
        }
    }
    if (status == 0)
        status = lt.multiply(call->handle, m->product, &one, w, m->w, x, m->x, &beta,
                             residual != NULL ? residual : y, m->y, y, m->y, &m->how, workspace,
                             m->workspace_bytes, call->stream);
    if (status != 0)
        call->text = lt.text(status);
    return status;
}

const kiln_cuda_library kiln_library_cublas = {open_library, close_library, release};
