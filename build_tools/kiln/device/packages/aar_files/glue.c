/* glue.c: the native methods of Model.java.
 *
 * All memory is the caller's, in direct buffers that Model.java keeps as long as the session is
 * open. Of the Java Native Interface two functions are called, by their places in its table (Java
 * Native Interface Specification, chapter 4), so no header of a JDK or NDK is needed.
 *
 * Methods that run the model return the bytes of an error, in one line, that they have put into
 * `text`, and 0 for success.
 */
#include KILN_HEADER
#include "facts.h" /* NATIVE, and sizes: generated */

#define GET_DIRECT_BUFFER_ADDRESS  230
#define GET_DIRECT_BUFFER_CAPACITY 231
#define MAX_RANK                   8
#define ALIGN                      64u

/* A table of functions, of which only these two are known here. */
typedef const union {
    void *other;
    void *(*address)(void *environment, void *buffer);
    int64_t (*capacity)(void *environment, void *buffer);
} *const *kiln_java;

/* Names at file scope begin with kiln_, which no model's name does. */
static const kiln_model *const kiln_this = &KILN_MODEL;

typedef struct kiln_model_memory {
    kiln_session session;
    kiln_pool pool;
    kiln_plan_result result;
    DLTensor inputs[INPUTS + 1], outputs[OUTPUTS + 1];
    unsigned char *output_data[OUTPUTS + 1];
    int64_t *output_dims[OUTPUTS + 1]; /* (rank) of Tensor.java */
    int32_t has_pool;
} kiln_model_memory;

static const int64_t kiln_input_bytes[] = INPUT_BYTES, kiln_output_bytes[] = OUTPUT_BYTES;

static void *kiln_address(kiln_java environment, void *buffer) {
    return buffer == NULL ? NULL
                          : (*environment)[GET_DIRECT_BUFFER_ADDRESS].address(
                                (void *)(uintptr_t)environment, buffer);
}

static size_t kiln_rounded(size_t bytes, size_t align) {
    return (bytes + align - 1) / align * align;
}

static unsigned char *kiln_aligned(void *memory) {
    return (unsigned char *)kiln_rounded((uintptr_t)memory, ALIGN);
}

static kiln_model_memory *kiln_model_of(kiln_java environment, void *buffer) {
    return (kiln_model_memory *)(void *)kiln_aligned(kiln_address(environment, buffer));
}

static int32_t kiln_told(const kiln_detail *detail, kiln_java environment, void *text) {
    char *place = kiln_address(environment, text);
    const int64_t bytes =
        (*environment)[GET_DIRECT_BUFFER_CAPACITY].capacity((void *)(uintptr_t)environment, text);
    return (int32_t)kiln_detail_text(detail, place, (size_t)bytes);
}

/* Bytes of the model's memory, and of the greatest size of input or output `index`. */
int64_t NATIVE(bytes)(kiln_java environment, void *class, int32_t side, int32_t index) {
    (void)environment;
    (void)class;
    if (side == 0)
        return (int64_t)(ALIGN + kiln_rounded(sizeof(kiln_model_memory), ALIGN) +
                         kiln_rounded(ARENA_BYTES, ALIGN) + STATE_BYTES);
    return side == 1 ? kiln_input_bytes[index] : kiln_output_bytes[index];
}

/* Bytes from the beginning of a buffer to the first that is aligned for parameters. */
int32_t NATIVE(skip)(kiln_java environment, void *class, void *buffer) {
    (void)class;
    unsigned char *begin = kiln_address(environment, buffer);
    return (int32_t)(kiln_aligned(begin) - begin);
}

/* Bind a tensor to its elements and to its sizes, which stay where they are. */
void NATIVE(bind)(kiln_java environment, void *class, void *memory, int32_t output, int32_t index,
                  void *data, void *dims) {
    (void)class;
    kiln_model_memory *self = kiln_model_of(environment, memory);
    unsigned char *elements = kiln_address(environment, data);
    int64_t *sizes = kiln_address(environment, dims);
    if (output) {
        self->output_data[index] = elements;
        self->output_dims[index] = sizes;
    } else {
        self->inputs[index] = kiln_bind(&kiln_this->inputs[index], sizes, elements);
    }
}

int32_t NATIVE(open)(kiln_java environment, void *class, void *memory, void *text, void *params,
                     int64_t params_bytes, int32_t threads) {
    (void)class;
    kiln_model_memory *self = kiln_model_of(environment, memory);
    unsigned char *arena = (unsigned char *)self + kiln_rounded(sizeof *self, ALIGN);
    kiln_config config = {.arena = arena, .arena_bytes = ARENA_BYTES};
    if (STATE_BYTES > 0) {
        config.state = arena + kiln_rounded(ARENA_BYTES, ALIGN);
        config.state_bytes = STATE_BYTES;
    }
    config.params = kiln_address(environment, params);
    config.params_bytes = (size_t)params_bytes;
    if (threads != 1) {
        const kiln_detail failed = {
            .status = kiln_pool_open(&self->pool, threads), .index = -1, .axis = -1};
        if (failed.status != KILN_OK)
            return kiln_told(&failed, environment, text);
        self->has_pool = 1;
        config.pool = &self->pool;
    }
    if (kiln_open(&self->session, kiln_this, &config) == KILN_OK)
        return 0;
    const int32_t bytes = kiln_told(kiln_error(&self->session), environment, text);
    if (self->has_pool)
        (void)kiln_pool_close(&self->pool);
    self->has_pool = 0;
    return bytes;
}

int32_t NATIVE(run)(kiln_java environment, void *class, void *memory, void *text) {
    (void)class;
    kiln_model_memory *self = kiln_model_of(environment, memory);
    kiln_detail detail;
    if (kiln_plan(kiln_this, self->inputs, &self->result, &detail) != KILN_OK)
        return kiln_told(&detail, environment, text);
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        const kiln_tensor *about = &kiln_this->outputs[i];
        (void)kiln_tensor_shape(about, self->result.dims, self->output_dims[i]);
        self->outputs[i] = kiln_bind(about, self->output_dims[i], self->output_data[i]);
    }
    if (kiln_run(&self->session, self->inputs, self->outputs) != KILN_OK)
        return kiln_told(kiln_error(&self->session), environment, text);
    for (uint32_t i = 0; i < OUTPUTS; i++) /* counted in the run */
        (void)kiln_output_shape(&self->session, i, self->output_dims[i]);
    return 0;
}

/* Give the model's state its initial values. */
int32_t NATIVE(reset)(kiln_java environment, void *class, void *memory, void *text) {
    (void)class;
    kiln_model_memory *self = kiln_model_of(environment, memory);
    return kiln_reset(&self->session) == KILN_OK
               ? 0
               : kiln_told(kiln_error(&self->session), environment, text);
}

static int32_t kiln_named(const char *name, kiln_java environment, void *text) {
    char *place = kiln_address(environment, text);
    int32_t bytes = 0;
    for (; name[bytes] != '\0'; bytes++)
        place[bytes] = name[bytes];
    return bytes;
}

/* Name of the variant that runs, as text. */
int32_t NATIVE(variant)(kiln_java environment, void *class, void *memory, void *text) {
    (void)class;
    return kiln_named(kiln_model_of(environment, memory)->session.variant->name, environment, text);
}

/* Android's name of the architecture, as text. */
int32_t NATIVE(abi)(kiln_java environment, void *class, void *text) {
    (void)class;
    return kiln_named(ABI, environment, text);
}

void NATIVE(close)(kiln_java environment, void *class, void *memory) {
    (void)class;
    kiln_model_memory *self = kiln_model_of(environment, memory);
    kiln_close(&self->session);
    if (self->has_pool)
        (void)kiln_pool_close(&self->pool);
    self->has_pool = 0;
}
