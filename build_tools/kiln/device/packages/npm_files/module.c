/* module.c: what a WebAssembly module exports of a model, for loader.js. All memory is static:
 * memory.h, which the build writes, has that of the arena and of each tensor at its greatest size.
 *
 * Functions that return text return a null pointer for success, else an error in one line. */
#include KILN_HEADER
#include "memory.h"

#define EXPORT(name) __attribute__((export_name(#name))) kiln_export_##name
#define MAX_RANK     8
#define COUNT(array) (sizeof array / sizeof array[0] - 1)

/* Names at file scope begin with kiln_, which no model's name does. */
static const kiln_model *const kiln_this = &KILN_MODEL;

#if PARAMS_BYTES > 0
static _Alignas(KILN_PARAMS_ALIGN) unsigned char kiln_params_file[PARAMS_BYTES];
#else
static unsigned char kiln_params_file[1];
#endif

static kiln_session kiln_opened;
static kiln_plan_result kiln_result;
static int64_t kiln_input_sizes[COUNT(kiln_input_memory) + 1][MAX_RANK];
static int64_t kiln_output_sizes[COUNT(kiln_output_memory) + 1][MAX_RANK];
static int32_t kiln_shown[MAX_RANK]; /* a shape, on its way to or from JavaScript */
static DLTensor kiln_inputs[COUNT(kiln_input_memory) + 1],
    kiln_outputs[COUNT(kiln_output_memory) + 1];
static char kiln_text[256];

static const char *kiln_told(const kiln_detail *detail) {
    (void)kiln_detail_text(detail, kiln_text, sizeof kiln_text);
    return kiln_text;
}

/* Where params.bin has to be put before `open`. */
unsigned char *EXPORT(params)(void) {
    return kiln_params_file;
}

const char *EXPORT(open)(void) {
    kiln_config config = {.arena = kiln_arena, .arena_bytes = ARENA_BYTES};
    if (PARAMS_BYTES > 0) {
        config.params = kiln_params_file;
        config.params_bytes = PARAMS_BYTES;
    }
    return kiln_open(&kiln_opened, kiln_this, &config) == KILN_OK
               ? NULL
               : kiln_told(kiln_error(&kiln_opened));
}

/* Memory of input or output `index`. */
unsigned char *EXPORT(data)(int32_t output, uint32_t index) {
    return output ? kiln_output_memory[index] : kiln_input_memory[index];
}

/* The numbers of a shape, written before `set_shape` and read after `get_shape`. */
int32_t *EXPORT(shape)(void) {
    return kiln_shown;
}

void EXPORT(set_shape)(uint32_t index, int32_t rank) {
    for (int32_t axis = 0; axis < rank; axis++)
        kiln_input_sizes[index][axis] = kiln_shown[axis];
    kiln_inputs[index] =
        kiln_bind(&kiln_this->inputs[index], kiln_input_sizes[index], kiln_input_memory[index]);
    kiln_inputs[index].ndim = rank;
}

int32_t EXPORT(get_shape)(uint32_t index) {
    for (int32_t axis = 0; axis < kiln_outputs[index].ndim; axis++)
        kiln_shown[axis] = (int32_t)kiln_output_sizes[index][axis];
    return kiln_outputs[index].ndim;
}

/* Check the shapes of all inputs, which decide those of the outputs. */
const char *EXPORT(plan)(void) {
    kiln_detail detail;
    if (kiln_plan(kiln_this, kiln_inputs, &kiln_result, &detail) != KILN_OK)
        return kiln_told(&detail);
    for (uint32_t i = 0; i < COUNT(kiln_output_memory); i++) {
        const kiln_tensor *about = &kiln_this->outputs[i];
        (void)kiln_tensor_shape(about, kiln_result.dims, kiln_output_sizes[i]);
        kiln_outputs[i] = kiln_bind(about, kiln_output_sizes[i], kiln_output_memory[i]);
    }
    return NULL;
}

const char *EXPORT(run)(void) {
    return kiln_run(&kiln_opened, kiln_inputs, kiln_outputs) == KILN_OK
               ? NULL
               : kiln_told(kiln_error(&kiln_opened));
}
