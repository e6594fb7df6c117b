/* try_converted.c: runs whose inputs are converted on the GPU, for test_cuda_converted.py, with a
 * model of two inputs that each are copied to an output. It is for the stand-in of the driver.
 *
 *     try_converted FOLDER     image.bin, features.bin: bytes of the inputs; tables.bin: 4 scales,
 * 4 offsets, then 20 scales and 20 offsets
 *
 * A line for each run: what it is, its status, the text of its error, output 0, output 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "kiln_cuda.h"

enum {
    ROWS = 4,
    COLUMNS = 5,
    IMAGE = 4 * ROWS * COLUMNS,
    FEATURES = 2 * 20 * 3
};

static const unsigned char image_on_gpu[] = {0x50, 0xED, 0x55, 0xBA};
static const void *const images[] = {image_on_gpu};
static const char *const kernels[] = {"copy", "kiln_convert_input"};
static void *functions[KILN_CUDA_GPUS * 2], *modules[KILN_CUDA_GPUS];
static kiln_cuda_shared shared[KILN_CUDA_GPUS];
static const size_t arenas[] = {0}, bytes[] = {IMAGE * 4, FEATURES * 4, IMAGE * 4, FEATURES * 4};
static const uint8_t has_graph[] = {1};
static const kiln_cuda_model cuda = {.images = images,
                                     .modules_count = 1,
                                     .archs = "sm_90",
                                     .kernels = kernels,
                                     .kernels_count = 2,
                                     .conversion = 2,
                                     .arena_bytes = arenas,
                                     .tensor_bytes = bytes,
                                     .has_graph = has_graph,
                                     .shared = shared,
                                     .functions = functions,
                                     .modules = modules};

static int32_t step(const kiln_frame *frame, uint32_t bucket, uint32_t number) {
    const uint32_t size = number == 0 ? IMAGE : FEATURES, launch[] = {1, 1, 1, size, 1, 1};
    const void *const args[] = {frame->inputs[number].data, frame->outputs[number].data};
    return bucket == 0 ? kiln_cuda_launch(frame, 0, launch, args, 2) : -1;
}

static const int64_t image_shape[] = {1, 4, ROWS, COLUMNS}, features_shape[] = {2, 20, 3};
static const kiln_tensor tensors[] = {{"image", {kDLFloat, 32, 1}, 4, image_shape, 0, 0},
                                      {"features", {kDLFloat, 32, 1}, 3, features_shape, 0, 0}};
static const kiln_bucket buckets[] = {{"only", 0, 2, NULL}};
static const kiln_variant variants[] = {{"only", 0, step}};
static const unsigned char hash[32];
static const kiln_model model = {.abi = KILN_ABI,
                                 .name = "copies",
                                 .inputs_count = 2,
                                 .outputs_count = 2,
                                 .buckets_count = 1,
                                 .inputs = tensors,
                                 .outputs = tensors,
                                 .buckets = buckets,
                                 .variants = variants,
                                 .variants_count = 1,
                                 .arena_align = 64,
                                 .hash = hash,
                                 .gpu = &kiln_cuda_functions,
                                 .gpu_model = &cuda};

static kiln_session session;
static float out[IMAGE + FEATURES];

static void run(const char *what, const DLTensor *inputs, const kiln_cuda_scaling *scalings) {
    DLTensor outputs[] = {kiln_bind(&tensors[0], image_shape, out),
                          kiln_bind(&tensors[1], features_shape, out + IMAGE)};
    char text[256] = "";
    outputs[0].device.device_type = outputs[1].device.device_type = kDLCUDAHost;
    memset(out, 0, sizeof out);
    const kiln_status status = kiln_cuda_enqueue_scaled(&session, inputs, outputs, scalings);
    if (status != KILN_OK)
        kiln_detail_text(kiln_error(&session), text, sizeof text);
    for (size_t i = 0; i < IMAGE + FEATURES; i++)
        if (out[i] != 0)
            exit(5); /* it waited */
    /* Another run waits for the stream. */
    float other[IMAGE + FEATURES] = {0};
    const DLTensor plain[] = {kiln_bind(&tensors[0], image_shape, other),
                              kiln_bind(&tensors[1], features_shape, other + IMAGE)};
    float sink[IMAGE + FEATURES];
    const DLTensor sinks[] = {kiln_bind(&tensors[0], image_shape, sink),
                              kiln_bind(&tensors[1], features_shape, sink + IMAGE)};
    if (kiln_run(&session, plain, sinks) != KILN_OK)
        exit(6);
    printf("%s\t%s\t%s\t", what, kiln_status_name(status), text);
    print_bytes(out, sizeof out);
}

static void wrong_uses(const DLTensor *inputs, const kiln_cuda_scaling *right) {
    DLTensor given[2];
    kiln_cuda_scaling scalings[2];
    int64_t gaps[] = {160, 1, 40, 8};
#define WRONG(what, change)                                                                        \
    memcpy(given, inputs, sizeof given);                                                           \
    memcpy(scalings, right, sizeof scalings);                                                      \
    change;                                                                                        \
    run(what, given, scalings)
    WRONG("signed", given[0].dtype.code = kDLInt);
    WRONG("doubles", given[1].dtype.bits = 64);
    WRONG("pageable", given[0].device.device_type = kDLCPU);
    WRONG("other GPU", (given[0].device.device_type = kDLCUDA, given[0].device.device_id = 1));
    WRONG("gaps", given[0].strides = gaps);
    WRONG("null", given[0].data = NULL);
    WRONG("odd address", given[1].byte_offset = 1);
    WRONG("in place",
          (given[0].device.device_type = kDLCUDA, given[0].data = kiln_cuda_input(&session, 0)));
    WRONG("no scale", scalings[0].scale = NULL);
    WRONG("other axis", scalings[0].axis = 3);
    WRONG("no such axis", scalings[1].axis = -1);
    WRONG("rank", given[0].ndim = 3);
    run("no scalings", inputs, NULL);
}

int main(int argc, char **argv) {
    const kiln_config config = {.gpu = 0};
    if (argc != 2 || kiln_open(&session, &model, &config) != KILN_OK)
        return 3;
    unsigned char *pixels = content(argv[1], "image", IMAGE);
    uint16_t *halves = content(argv[1], "features", FEATURES * 2);
    float *tables = content(argv[1], "tables", 48 * sizeof(float));
    kiln_cuda_scaling scalings[] = {{4, 1, tables, tables + 4}, {20, 1, tables + 8, tables + 28}};
    int64_t strides[] = {IMAGE, 1, 4 * COLUMNS, 4};
    DLTensor inputs[] = {kiln_bind(&tensors[0], image_shape, pixels),
                         kiln_bind(&tensors[1], features_shape, halves)};
    inputs[0].dtype = (DLDataType){kDLUInt, 8, 1};
    inputs[1].dtype = (DLDataType){kDLFloat, 16, 1};
    inputs[0].device.device_type = inputs[1].device.device_type = kDLCUDAHost;
    run("pinned", inputs, scalings);
    inputs[0].device.device_type = inputs[1].device.device_type = kDLCUDA;
    run("on the GPU", inputs, scalings);
    inputs[0].strides = strides;
    run("rows of pixels", inputs, scalings);
    inputs[0].device.device_type = kDLCUDAHost;
    run("pinned rows of pixels", inputs, scalings);
    inputs[0].strides = NULL;
    scalings[0].count = 1;
    scalings[0].offset = NULL;
    scalings[1].count = 0;
    run("one scale", inputs, scalings);
    scalings[0].count = 4;
    scalings[1].count = 20;
    inputs[1].device.device_type = kDLCUDAHost;
    wrong_uses(inputs, scalings);
    kiln_close(&session);
    free(pixels);
    free(halves);
    free(tables);
    return 0;
}
