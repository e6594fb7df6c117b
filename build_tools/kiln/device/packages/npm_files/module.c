/* module.c: what a WebAssembly module exports of a model, for loader.js. All memory is static:
 * memory.h, which the build writes, has that of the arena and of each tensor at its greatest size.
 *
 * Functions that return text return a null pointer for success, else an error in one line. */
#include KILN_HEADER
#include "memory.h"

#define EXPORT(name) __attribute__((export_name(#name))) name
#define MAX_RANK     8
#define COUNT(array) (sizeof array / sizeof array[0] - 1)

#if PARAMS_BYTES > 0
static _Alignas(KILN_PARAMS_ALIGN) unsigned char image[PARAMS_BYTES];
#else
static unsigned char image[1];
#endif

static kiln_session session;
static kiln_plan_result result;
static int64_t input_shape[COUNT(input_memory) + 1][MAX_RANK];
static int64_t output_shape[COUNT(output_memory) + 1][MAX_RANK];
static int32_t shown[MAX_RANK]; /* a shape, on its way to or from JavaScript */
static DLTensor inputs[COUNT(input_memory) + 1], outputs[COUNT(output_memory) + 1];
static char text[256];

static const char *told(const kiln_detail *detail) {
    (void)kiln_detail_text(detail, text, sizeof text);
    return text;
}

/* Where params.bin has to be put before `open`. */
unsigned char *EXPORT(params)(void) {
    return image;
}

const char *EXPORT(open)(void) {
    kiln_config config = {.arena = arena, .arena_bytes = ARENA_BYTES};
    if (PARAMS_BYTES > 0) {
        config.params = image;
        config.params_bytes = PARAMS_BYTES;
    }
    return kiln_open(&session, &KILN_MODEL, &config) == KILN_OK ? NULL : told(kiln_error(&session));
}

/* Memory of input or output `index`. */
unsigned char *EXPORT(data)(int32_t output, uint32_t index) {
    return output ? output_memory[index] : input_memory[index];
}

/* The numbers of a shape, written before `set_shape` and read after `get_shape`. */
int32_t *EXPORT(shape)(void) {
    return shown;
}

void EXPORT(set_shape)(uint32_t index, int32_t rank) {
    for (int32_t axis = 0; axis < rank; axis++)
        input_shape[index][axis] = shown[axis];
    inputs[index] = kiln_bind(&KILN_MODEL.inputs[index], input_shape[index], input_memory[index]);
    inputs[index].ndim = rank;
}

int32_t EXPORT(get_shape)(uint32_t index) {
    for (int32_t axis = 0; axis < outputs[index].ndim; axis++)
        shown[axis] = (int32_t)output_shape[index][axis];
    return outputs[index].ndim;
}

/* Check the shapes of all inputs, which decide those of the outputs. */
const char *EXPORT(plan)(void) {
    kiln_detail detail;
    if (kiln_plan(&KILN_MODEL, inputs, &result, &detail) != KILN_OK)
        return told(&detail);
    for (uint32_t i = 0; i < COUNT(output_memory); i++) {
        const kiln_tensor *about = &KILN_MODEL.outputs[i];
        (void)kiln_tensor_shape(about, result.dims, output_shape[i]);
        outputs[i] = kiln_bind(about, output_shape[i], output_memory[i]);
    }
    return NULL;
}

const char *EXPORT(run)(void) {
    return kiln_run(&session, inputs, outputs) == KILN_OK ? NULL : told(kiln_error(&session));
}
