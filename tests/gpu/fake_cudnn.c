/* fake_cudnn.c: stands in for libcudnn.so.9 in tests: NHWC convolutions of floats, halves and
 * bfloat16 numbers, as cuDNN's documentation defines them. See fake_library.h.
 *
 * It refuses what the documentation forbids: sizes that do not fit together, an identity with an
 * algorithm that has none, a workspace that is too small, tensors of several types. Where floats
 * may be rounded to tf32 it does so. Of the algorithms that it suggests, the first wants more
 * memory than there is.
 */
#include "fake_library.h"

enum {
    BAD = 2000,
    NOT_SUPPORTED = 3000,
    FLOAT = 0,
    HALF = 2,
    BRAIN = 9,
    TF32 = 0, /* of math */
    WORKSPACE = 4096
};

typedef struct tensor {
    int type, n, c, h, w;
} tensor; /* of a filter: k, c, h, w */

typedef struct convolution {
    int pad[2], stride[2], dilation[2], math;
} convolution;

typedef struct suggestion {
    int algorithm, status;
    float milliseconds;
    size_t bytes;
    int determinism, math, reserved[3];
} suggestion;

typedef struct work {
    tensor x, w, y;
    convolution c;
    float alpha1, alpha2;
    const void *at_x, *at_w, *at_z, *at_bias;
    void *out, *workspace;
    int relu;
} work;

static long handles, descriptors;
static void *set_stream;

static void report(void) {
    char text[160];
    snprintf(text, sizeof text, "left: handles %ld descriptors", handles);
    say(text, (int)descriptors);
}

const char *cudnnGetErrorString(int status) {
    return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
int cudnnCreate(void **handle) {
    CALL({
        if (handles++ == 0)
            (void)atexit(report);
        *handle = &handles;
    });
}
int cudnnDestroy(void *handle) {
    CALL(handle == &handles ? (void)handles-- : abort());
}
int cudnnSetStream(void *handle, void *stream) {
    (void)handle;
    CALL(set_stream = stream);
}

static void *made(size_t bytes) {
    descriptors++;
    return calloc(1, bytes);
}
#define DESCRIPTOR(name, type)                                                                     \
    int cudnnCreate##name##Descriptor(void **out) {                                                \
        CALL(*out = made(sizeof(type)));                                                           \
    }                                                                                              \
    int cudnnDestroy##name##Descriptor(void *given) {                                              \
        CALL({                                                                                     \
            free(given);                                                                           \
            descriptors--;                                                                         \
        });                                                                                        \
    }
DESCRIPTOR(Tensor, tensor)
DESCRIPTOR(Filter, tensor)
DESCRIPTOR(Convolution, convolution)
DESCRIPTOR(Activation, int)

static int known(int type) {
    return type == FLOAT || type == HALF || type == BRAIN;
}
int cudnnSetTensor4dDescriptor(void *given, int format, int type, int n, int c, int h, int w) {
    CALL({
        *(tensor *)given = (tensor){type, n, c, h, w};
        result = format == 1 && known(type) && n > 0 && c > 0 && h > 0 && w > 0 ? 0 : BAD;
    });
}
int cudnnSetFilter4dDescriptor(void *given, int type, int format, int k, int c, int h, int w) {
    CALL({
        *(tensor *)given = (tensor){type, k, c, h, w};
        result = format == 1 && known(type) && k > 0 && c > 0 && h > 0 && w > 0 ? 0 : BAD;
    });
}
int cudnnSetConvolution2dDescriptor(void *given, int pad_h, int pad_w, int u, int v, int dilation_h,
                                    int dilation_w, int mode, int type) {
    CALL({
        *(convolution *)given = (convolution){{pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, 0};
        result = mode == 1 && type == 0 ? 0 : BAD;
    });
}
int cudnnSetConvolutionMathType(void *given, int math) {
    CALL({
        ((convolution *)given)->math = math;
        say("math", math);
    });
}
int cudnnSetActivationDescriptor(void *given, int mode, int nan, double coefficient) {
    (void)coefficient;
    CALL({
        *(int *)given = mode;
        result = (mode == 1 || mode == 5) && nan == 1 ? 0 : BAD;
    });
}

static int axis(int in, int filter, const convolution *c, int i) {
    return (in + 2 * c->pad[i] - c->dilation[i] * (filter - 1) - 1) / c->stride[i] + 1;
}
static int fits(const tensor *x, const tensor *w, const convolution *c, const tensor *y) {
    return x->c == w->c && y->c == w->n && y->n == x->n && y->h == axis(x->h, w->h, c, 0) &&
           y->w == axis(x->w, w->w, c, 1) && x->type == w->type && y->type == w->type;
}
static float get(const void *from, int type, long at) {
    if (type == BRAIN)
        return (float)((const __bf16 *)from)[at];
    return type == HALF ? (float)((const _Float16 *)from)[at] : ((const float *)from)[at];
}
static float factor(const work *w, const void *from, long at) {
    return w->x.type == FLOAT && w->c.math == TF32 ? to_tf32(get(from, FLOAT, at))
                                                   : get(from, w->x.type, at);
}

int cudnnGetConvolutionForwardAlgorithm_v7(void *handle, void *x, void *w, void *c, void *y,
                                           int most, int *count, suggestion *found) {
    CALL({
        if (handle != &handles || most < 3 || !fits(x, w, c, y))
            result = BAD;
        else {
            *count = 3;
            found[0] = (suggestion){6, 0, 1, (size_t)1 << 40, 0, 3, {0}};
            found[1] = (suggestion){0, 0, 2, 0, 0, 3, {0}};
            found[2] = (suggestion){1, 0, 3, WORKSPACE, 0, 3, {0}};
        }
    });
}

static void convolve(void *data) {
    const work *w = data;
    memset(w->workspace, 0xEE, WORKSPACE); /* what an algorithm leaves there */
    for (int n = 0; n < w->y.n; n++)
        for (int p = 0; p < w->y.h; p++)
            for (int q = 0; q < w->y.w; q++)
                for (int k = 0; k < w->y.c; k++) {
                    const long at = (((long)n * w->y.h + p) * w->y.w + q) * w->y.c + k;
                    float sum = 0;
                    for (int r = 0; r < w->w.h; r++)
                        for (int s = 0; s < w->w.w; s++) {
                            const int h = p * w->c.stride[0] - w->c.pad[0] + r * w->c.dilation[0];
                            const int v = q * w->c.stride[1] - w->c.pad[1] + s * w->c.dilation[1];
                            if (h < 0 || h >= w->x.h || v < 0 || v >= w->x.w)
                                continue;
                            const long x = (((long)n * w->x.h + h) * w->x.w + v) * w->x.c;
                            const long f = (((long)k * w->w.h + r) * w->w.w + s) * w->w.c;
                            for (int c = 0; c < w->x.c; c++)
                                sum += factor(w, w->at_x, x + c) * factor(w, w->at_w, f + c);
                        }
                    sum = w->alpha1 * sum + get(w->at_bias, w->y.type, k);
                    if (w->alpha2 != 0)
                        sum += w->alpha2 * get(w->at_z, w->y.type, at);
                    sum = w->relu && sum < 0 ? 0 : sum;
                    if (w->y.type == HALF)
                        ((_Float16 *)w->out)[at] = (_Float16)sum;
                    else if (w->y.type == BRAIN)
                        ((uint16_t *)w->out)[at] = bfloat16_bits(sum);
                    else
                        ((float *)w->out)[at] = sum;
                }
}

int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha1, void *of_x,
                                          const void *x, void *of_w, const void *w, void *c,
                                          int algorithm, void *workspace, size_t bytes,
                                          const void *alpha2, void *of_z, const void *z,
                                          void *of_bias, const void *bias, void *activation,
                                          void *of_y, void *y) {
    const tensor *b = of_bias;
    CALL({
        const int relu = *(int *)activation == 1;
        if (handle != &handles || !fits(of_x, of_w, c, of_y) || of_z != of_y ||
            b->type != ((tensor *)of_y)->type || b->c != ((tensor *)of_y)->c ||
            b->n * b->h * b->w != 1 || workspace == NULL)
            result = BAD;
        else if ((!relu && algorithm != 1) || algorithm > 1 ||
                 (algorithm == 1 && bytes < WORKSPACE))
            result = NOT_SUPPORTED;
        else {
            work all = {*(tensor *)of_x,
                        *(tensor *)of_w,
                        *(tensor *)of_y,
                        *(convolution *)c,
                        0,
                        0,
                        x,
                        w,
                        z,
                        bias,
                        y,
                        workspace,
                        relu};
            memcpy(&all.alpha1, alpha1, sizeof(float));
            memcpy(&all.alpha2, alpha2, sizeof(float));
            result = put(set_stream, convolve, &all, sizeof all);
        }
    });
}
