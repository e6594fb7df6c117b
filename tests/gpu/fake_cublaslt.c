/* fake_cublaslt.c: stands in for libcublasLt.so.13 in tests: products of float, half and
 * bfloat16 matrices, and of floats rounded to tf32, stored by columns, as cuBLASLt's documentation
 * defines them. See fake_library.h.
 *
 * It refuses what the documentation forbids: sizes that do not fit, pointers that are less aligned
 * than the heuristic was told, an algorithm for other sizes, a workspace smaller than it asked for.
 */
#include "fake_library.h"

enum {
    INVALID = 7,
    NOT_SUPPORTED = 15,
    FLOAT = 0,
    HALF = 2,
    BRAIN = 14,
    PLAIN = 68,
    TF32 = 77,
    MAGIC = 0x4b696c6e
};

typedef struct desc {
    int compute, transposed;
    uint32_t epilogue;
    const void *bias;
} desc;

typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t leading, stride;
    int32_t batch;
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t align[4];
} preference;

typedef struct algorithm {
    uint64_t magic, m, n, k, batch, workspace, align, unused;
} algorithm;

typedef struct suggestion {
    algorithm how;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} suggestion;

typedef struct work {
    desc d;
    layout a, b, c;
    float alpha, beta;
    const void *at_a, *at_b, *at_c;
    void *out;
    void *workspace;
    size_t bytes;
} work;

static long handles, descs, layouts, preferences;

static void report(void) {
    char text[160];
    snprintf(text, sizeof text, "left: handles %ld products %ld layouts %ld preferences", handles,
             descs, layouts);
    say(text, (int)preferences);
}

const char *cublasLtGetStatusString(int status) {
    return status == NOT_SUPPORTED ? "the requested functionality is not supported"
                                   : "an unsupported value or parameter was passed to the function";
}
int cublasLtCreate(void **handle) {
    CALL({
        if (handles++ == 0)
            (void)atexit(report);
        *handle = &handles;
    });
}
int cublasLtDestroy(void *handle) {
    CALL(handle == &handles ? (void)handles-- : abort());
}
int cublasLtMatmulDescCreate(void **made, int compute, int scale) {
    CALL({
        if ((compute != PLAIN && compute != TF32) || scale != 0)
            result = INVALID;
        else {
            *made = calloc(1, sizeof(desc));
            ((desc *)*made)->compute = compute;
            say("compute", compute);
            descs++;
        }
    });
}
int cublasLtMatmulDescDestroy(void *given) {
    CALL({
        free(given);
        descs--;
    });
}
int cublasLtMatmulDescSetAttribute(void *given, int attribute, const void *value, size_t bytes) {
    desc *d = given;
    CALL({
        if (attribute == 3 && bytes == sizeof(int32_t))
            memcpy(&d->transposed, value, bytes);
        else if (attribute == 7 && bytes == sizeof(uint32_t))
            memcpy(&d->epilogue, value, bytes);
        else if (attribute == 8 && bytes == sizeof(void *))
            memcpy(&d->bias, value, bytes);
        else
            result = INVALID;
    });
}
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns,
                               int64_t leading) {
    CALL({
        layout *l = calloc(1, sizeof *l);
        *l = (layout){type, rows, columns, leading, 0, 1};
        *made = l;
        layouts++;
        result = (type == FLOAT || type == HALF || type == BRAIN) && leading >= (int64_t)rows
                     ? 0
                     : INVALID;
    });
}
int cublasLtMatrixLayoutDestroy(void *given) {
    CALL({
        free(given);
        layouts--;
    });
}
int cublasLtMatrixLayoutSetAttribute(void *given, int attribute, const void *value, size_t bytes) {
    layout *l = given;
    CALL({
        if (attribute == 5 && bytes == sizeof(int32_t))
            memcpy(&l->batch, value, bytes);
        else if (attribute == 6 && bytes == sizeof(int64_t))
            memcpy(&l->stride, value, bytes);
        else
            result = INVALID;
    });
}
int cublasLtMatmulPreferenceCreate(void **made) {
    CALL({
        preference *p = calloc(1, sizeof *p);
        for (int i = 0; i < 4; i++)
            p->align[i] = 256;
        *made = p;
        preferences++;
    });
}
int cublasLtMatmulPreferenceDestroy(void *given) {
    CALL({
        free(given);
        preferences--;
    });
}
int cublasLtMatmulPreferenceSetAttribute(void *given, int attribute, const void *value,
                                         size_t bytes) {
    preference *p = given;
    CALL({
        if (attribute == 1 && bytes == sizeof(uint64_t))
            memcpy(&p->workspace, value, bytes);
        else if (attribute >= 5 && attribute <= 8 && bytes == sizeof(uint32_t))
            memcpy(&p->align[attribute - 5], value, bytes);
        else
            result = INVALID;
    });
}

/* Rows, columns and depth of a product, where its matrices fit together. */
static int sizes_of(const desc *d, const layout *a, const layout *b, const layout *c,
                    algorithm *how) {
    const uint64_t m = d->transposed ? a->columns : a->rows,
                   k = d->transposed ? a->rows : a->columns;
    *how = (algorithm){MAGIC, m, b->columns, k, (uint64_t)c->batch, 1024, 0, 0};
    return (a->type == FLOAT || d->compute == PLAIN) && a->type == b->type && b->type == c->type &&
           b->rows == k && c->rows == m && c->columns == b->columns && a->batch == c->batch &&
           b->batch == c->batch;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d,
                                   void *given, int most, suggestion *found, int *count) {
    const preference *p = given;
    CALL({
        *count = 0;
        if (handle != &handles || most != 1 || !sizes_of(product, a, b, c, &found->how) || c != d)
            result = INVALID;
        else if (p->workspace >= found->how.workspace) {
            *count = 1;
            found->status = 0;
            found->workspace = found->how.workspace;
            found->how.align = p->align[0];
        }
    });
}

static float get(const void *from, int type, int64_t at) {
    if (type == BRAIN)
        return (float)((const __bf16 *)from)[at];
    return type == HALF ? (float)((const _Float16 *)from)[at] : ((const float *)from)[at];
}
/* Element `at` of a matrix as it is multiplied. */
static float factor(const work *w, const void *from, int type, int64_t at) {
    const float value = get(from, type, at);
    return w->d.compute == TF32 ? to_tf32(value) : value;
}

static void multiply(void *data) {
    const work *w = data;
    const layout *a = &w->a, *b = &w->b, *c = &w->c;
    const int64_t depth = (int64_t)b->rows;
    memset(w->workspace, 0xEE, w->bytes);
    for (int32_t at = 0; at < c->batch; at++)
        for (int64_t j = 0; j < (int64_t)c->columns; j++)
            for (int64_t i = 0; i < (int64_t)c->rows; i++) {
                const int64_t here = at * c->stride + j * c->leading + i;
                float sum = 0;
                for (int64_t k = 0; k < depth; k++)
                    sum += factor(w, w->at_a, a->type,
                                  at * a->stride +
                                      (w->d.transposed ? i * a->leading + k : k * a->leading + i)) *
                           factor(w, w->at_b, b->type, at * b->stride + j * b->leading + k);
                sum *= w->alpha;
                if (w->beta != 0)
                    sum += w->beta * get(w->at_c, c->type, here);
                if (w->d.epilogue & 4)
                    sum += get(w->d.bias, c->type, i);
                if ((w->d.epilogue & 2) && sum < 0)
                    sum = 0;
                if (c->type == HALF)
                    ((_Float16 *)w->out)[here] = (_Float16)sum;
                else if (c->type == BRAIN)
                    ((uint16_t *)w->out)[here] = bfloat16_bits(sum);
                else
                    ((float *)w->out)[here] = sum;
            }
}

int cublasLtMatmul(void *handle, void *product, const void *alpha, const void *a, void *of_a,
                   const void *b, void *of_b, const void *beta, const void *c, void *of_c, void *d,
                   void *of_d, const algorithm *how, void *workspace, size_t bytes, void *stream) {
    const desc *kind = product;
    algorithm fits;
    CALL({
        const uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
        const int same = sizes_of(kind, of_a, of_b, of_c, &fits) && how->magic == MAGIC &&
                         how->m == fits.m && how->n == fits.n && how->k == fits.k &&
                         how->batch == fits.batch;
        if (handle != &handles || of_c != of_d || !same || all % how->align != 0 ||
            bytes < how->workspace || workspace == NULL || (kind->epilogue & ~7u) != 0)
            result = INVALID;
        else {
            work w = {
                *kind, *(layout *)of_a, *(layout *)of_b, *(layout *)of_c, 0, 0, a, b, c, d, NULL,
                0};
            memcpy(&w.alpha, alpha, sizeof w.alpha);
            memcpy(&w.beta, beta, sizeof w.beta);
            w.workspace = workspace;
            w.bytes = how->workspace;
            result = put(stream, multiply, &w, sizeof w);
        }
    });
}
