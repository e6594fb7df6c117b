/* time_converted.c: runs with inputs of uint8 where the model takes float32, compared with runs
 * with the same numbers as float32, and the time of both from pinned memory to pinned memory.
 *
 *     time_converted INPUTS PARAMS MILLISECONDS
 *
 * INPUTS gives the sizes, of its first vector; inputs of float32 hold pseudo-random pixels here,
 * times SCALE plus OFFSET. Prints lines, fields separated by tabs, times in nanoseconds:
 *
 *     inputs COUNT                  (of float32; with 0 nothing else)
 *     same   0 or 1                 (whether the outputs of both are the same, bit for bit)
 *     float32 TIME, uint8 TIME      (of each run)
 */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kiln_cuda.h"

#define AT_LEAST 5
#define AT_MOST  2000
#define SCALE    0.0078125f /* a power of two: the product is exact on every processor */
#define OFFSET   (-1.0f)

static kiln_session session;
/* The driver's functions. */
static int (*retain)(void **context, int device), (*push)(void *context), (*device_at)(int *, int);
static int (*host_alloc)(void **memory, size_t bytes, unsigned flags), (*wait)(void *stream);

static void find(void *where, const char *name) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *const function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL)
        harness_stop("not in libcuda.so.1", name);
    memcpy(where, &function, sizeof function);
}

/* Make the GPU's context current for what this program allocates; it stays until the end. */
static void enter_context(void) {
    void *context = NULL;
    int device = 0;
    find(&retain, "cuDevicePrimaryCtxRetain");
    find(&push, "cuCtxPushCurrent_v2");
    find(&device_at, "cuDeviceGet");
    find(&host_alloc, "cuMemHostAlloc");
    find(&wait, "cuStreamSynchronize");
    if (device_at(&device, 0) != 0 || retain(&context, device) != 0 || push(context) != 0)
        harness_stop("no context", "GPU 0");
}

static void *pinned(size_t bytes) {
    void *memory = NULL;
    if (host_alloc(&memory, bytes == 0 ? 1 : bytes, 0) != 0)
        harness_stop("no pinned memory", "cuMemHostAlloc");
    return memory;
}

static bool is_float(const DLTensor *tensor) {
    return tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32 && tensor->dtype.lanes == 1;
}

static size_t bytes_of(const DLTensor *tensor) {
    size_t bytes = tensor->dtype.bits / 8u;
    for (int32_t axis = 0; axis < tensor->ndim; axis++)
        bytes *= (size_t)tensor->shape[axis];
    return bytes;
}

static void place(DLTensor *tensor) {
    void *const memory = pinned(bytes_of(tensor));
    memcpy(memory, (unsigned char *)tensor->data + tensor->byte_offset, bytes_of(tensor));
    tensor->data = memory;
    tensor->byte_offset = 0;
    tensor->device.device_type = kDLCUDAHost;
}

/* Both forms of the inputs, in pinned memory; returns how many are converted. */
static uint32_t make_inputs(const DLTensor *given, DLTensor *floats, DLTensor *pixels) {
    uint32_t converted = 0, random = 1;
    for (uint32_t i = 0; i < harness_model()->inputs_count; i++) {
        floats[i] = given[i];
        place(&floats[i]);
        pixels[i] = floats[i];
        if (!is_float(&given[i]))
            continue;
        const size_t count = bytes_of(&given[i]) / sizeof(float);
        unsigned char *levels = pinned(count);
        float *values = floats[i].data;
        for (size_t at = 0; at < count; at++) {
            random = random * 1664525u + 1013904223u;
            levels[at] = (unsigned char)(random >> 24);
            values[at] = (float)levels[at] * SCALE + OFFSET;
        }
        pixels[i].data = levels;
        pixels[i].dtype = (DLDataType){kDLUInt, 8, 1};
        converted++;
    }
    return converted;
}

static void run(const DLTensor *inputs, const DLTensor *outputs,
                const kiln_cuda_scaling *scalings) {
    harness_must(&session, kiln_cuda_enqueue_scaled(&session, inputs, outputs, scalings));
    if (wait(kiln_cuda_stream(&session)) != 0)
        harness_stop("failed", "cuStreamSynchronize");
}

static void time_of(const char *what, const DLTensor *inputs, const DLTensor *outputs,
                    const kiln_cuda_scaling *scalings, uint64_t nanoseconds) {
    const uint64_t end = harness_now() + nanoseconds;
    for (int count = 0; count < AT_LEAST || (count < AT_MOST && harness_now() < end); count++) {
        const uint64_t began = harness_now();
        run(inputs, outputs, scalings);
        printf("%s\t%llu\n", what, (unsigned long long)(harness_now() - began));
    }
}

static void compare(const workload *w, uint64_t nanoseconds) {
    static const float scale = SCALE, offset = OFFSET;
    const uint32_t count = harness_model()->inputs_count, made = harness_model()->outputs_count;
    DLTensor *floats = array_of(count, sizeof *floats), *pixels = array_of(count, sizeof *pixels);
    DLTensor *first = array_of(made, sizeof *first), *second = array_of(made, sizeof *second);
    kiln_cuda_scaling *scalings = array_of(count, sizeof *scalings);
    for (uint32_t i = 0; i < count; i++)
        scalings[i] = (kiln_cuda_scaling){.count = 1, .scale = &scale, .offset = &offset};
    const uint32_t converted = make_inputs(w->input, floats, pixels);
    printf("inputs\t%u\n", (unsigned)converted);
    if (converted > 0) {
        bool same = true;
        for (uint32_t i = 0; i < made; i++) {
            first[i] = second[i] = w->output[i];
            place(&first[i]);
            place(&second[i]);
        }
        run(floats, first, scalings);
        run(pixels, second, scalings);
        for (uint32_t i = 0; i < made; i++)
            same = same && memcmp(first[i].data, second[i].data, bytes_of(&first[i])) == 0;
        printf("same\t%d\n", same);
        time_of("float32", floats, first, scalings, nanoseconds / 2);
        time_of("uint8", pixels, second, scalings, nanoseconds / 2);
    }
    array_free(floats);
    array_free(pixels);
    array_free(first);
    array_free(second);
    array_free(scalings);
}

int main(int argc, char **argv) {
    uint32_t vectors;
    workload w;
    harness_arguments(&argc, &argv);
    if (argc != 4)
        harness_stop("time_converted INPUTS PARAMS MILLISECONDS", "usage");
    FILE *in = vectors_open(argv[1], harness_model()->inputs_count, &vectors);
    unsigned char *params = params_loaded(argv[2]);
    workload_read(&w, in);
    const kiln_config config = workload_config(&w, params);
    harness_must(&session, kiln_open(&session, harness_model(), &config));
    enter_context();
    compare(&w, strtoull(argv[3], NULL, 10) * 1000000u);
    kiln_close(&session);
    workload_free(&w);
    fclose(in);
    return 0;
}
