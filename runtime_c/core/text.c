/* text.c: errors as text, without printf. Not linked into programs that print no error text. */
#include "internal.h"

const char *kiln_status_name(kiln_status status) {
#define NAME(status)                                                                               \
    case status:                                                                                   \
        return #status
    switch (status) {
        NAME(KILN_OK);
        NAME(KILN_CANCELLED);
        NAME(KILN_NULL_ARGUMENT);
        NAME(KILN_WRONG_ABI);
        NAME(KILN_NOT_OPEN);
        NAME(KILN_NOT_RUNNING);
        NAME(KILN_WRONG_MODEL);
        NAME(KILN_BAD_PLAN);
        NAME(KILN_BUSY);
        NAME(KILN_OTHER_SCALE);
        NAME(KILN_OTHER_INTERFACE);
        NAME(KILN_OTHER_NAME);
        NAME(KILN_NULL_DATA);
        NAME(KILN_BAD_RANK);
        NAME(KILN_BAD_DTYPE);
        NAME(KILN_BAD_SHAPE);
        NAME(KILN_BAD_STRIDES);
        NAME(KILN_BAD_DEVICE);
        NAME(KILN_BAD_OFFSET);
        NAME(KILN_BAD_ALIGNMENT);
        NAME(KILN_OVERLAP);
        NAME(KILN_BAD_GPU);
        NAME(KILN_DIM_RANGE);
        NAME(KILN_DIM_MULTIPLE);
        NAME(KILN_DIM_MISMATCH);
        NAME(KILN_NO_BUCKET);
        NAME(KILN_BAD_INDEX);
        NAME(KILN_TOO_MANY);
        NAME(KILN_ARENA_NULL);
        NAME(KILN_ARENA_ALIGNMENT);
        NAME(KILN_ARENA_TOO_SMALL);
        NAME(KILN_STATE_NULL);
        NAME(KILN_STATE_ALIGNMENT);
        NAME(KILN_STATE_TOO_SMALL);
        NAME(KILN_PARAMS_MISSING);
        NAME(KILN_PARAMS_ALIGNMENT);
        NAME(KILN_PARAMS_TRUNCATED);
        NAME(KILN_PARAMS_NOT_PARAMS);
        NAME(KILN_PARAMS_VERSION);
        NAME(KILN_PARAMS_OTHER_BUILD);
        NAME(KILN_PARAMS_CORRUPT);
        NAME(KILN_PARAMS_MEMORY);
        NAME(KILN_SYSTEM_FILE);
        NAME(KILN_SYSTEM_THREADS);
        NAME(KILN_SYSTEM_LIBRARY);
        NAME(KILN_LOAD_REFUSED);
        NAME(KILN_GPU_DRIVER);
        NAME(KILN_GPU_ABSENT);
        NAME(KILN_GPU_ARCH);
        NAME(KILN_GPU_MEMORY);
        NAME(KILN_GPU_FAILED);
        NAME(KILN_LIBRARY);
        NAME(KILN_LIBRARY_ABSENT);
        NAME(KILN_CPU);
        NAME(KILN_NO_VARIANT);
        NAME(KILN_IMAGE_NOT_IMAGE);
        NAME(KILN_IMAGE_FORMAT);
        NAME(KILN_IMAGE_TRUNCATED);
        NAME(KILN_IMAGE_CORRUPT);
        NAME(KILN_IMAGE_ALIGNMENT);
        NAME(KILN_IMAGE_MACHINE);
        NAME(KILN_IMAGE_OLD);
        NAME(KILN_IMAGE_MEMORY);
    }
    return "unknown status";
}

/* The text after the name of the tensor or dimension. %v is the value, %a the allowed values, %b
 * the nearest allowed sizes, %f the processor features that the value's bits represent; %t and %u
 * are the value and the allowed minimum as dtypes. */
static const char *message(kiln_status status) {
    switch (status) {
    case KILN_OK:
        return "no error";
    case KILN_CANCELLED:
        return "cancelled before this step";
    case KILN_NULL_ARGUMENT:
        return "null where a pointer is needed";
    case KILN_WRONG_ABI:
        return "model of runtime interface %v, this runtime has %a";
    case KILN_NOT_OPEN:
        return "not open";
    case KILN_NOT_RUNNING:
        return "no step left to run";
    case KILN_WRONG_MODEL:
        return "open for another model";
    case KILN_BAD_PLAN:
        return "no such step in the plan, or only an interface";
    case KILN_BUSY:
        return "in use: called from on_step of the run itself";
    case KILN_OTHER_SCALE:
        return "another scale or zero point than the program was built for";
    case KILN_OTHER_INTERFACE:
        return "%v, the program was built for %a";
    case KILN_OTHER_NAME:
        return "missing at this place, the program was built for it";
    case KILN_NULL_DATA:
        return "data or shape is null";
    case KILN_BAD_RANK:
        return "rank %v, allowed %a";
    case KILN_BAD_DTYPE:
        return "%t, allowed %u";
    case KILN_BAD_STRIDES:
        return "stride %v, allowed %a (compact, row-major)";
    case KILN_BAD_DEVICE:
        return "on device type %v, allowed %a (1: CPU, 2: CUDA, 3: pinned)";
    case KILN_BAD_OFFSET:
        return "byte offset %v or size leaves the address space";
    case KILN_ARENA_ALIGNMENT:
    case KILN_STATE_ALIGNMENT:
    case KILN_PARAMS_ALIGNMENT:
    case KILN_IMAGE_ALIGNMENT:
    case KILN_BAD_ALIGNMENT:
        return "address is %v bytes past a multiple of %m";
    case KILN_BAD_GPU:
        return "on GPU %v, the session is on %a";
    case KILN_OVERLAP:
        return "overlaps memory that the run reads or writes";
    case KILN_BAD_INDEX:
        return "index %v, allowed %a";
    case KILN_TOO_MANY:
        return "%v elements, allowed %a";
    case KILN_BAD_SHAPE:
    case KILN_DIM_RANGE:
    case KILN_DIM_MULTIPLE:
        return "%v, allowed %a";
    case KILN_DIM_MISMATCH:
        return "%v, allowed %a to agree with other axes";
    case KILN_NO_BUCKET:
        return "%v, served by no bucket%b";
    case KILN_ARENA_NULL:
    case KILN_STATE_NULL:
        return "null, %n bytes needed";
    case KILN_ARENA_TOO_SMALL:
    case KILN_STATE_TOO_SMALL:
    case KILN_PARAMS_TRUNCATED:
    case KILN_IMAGE_TRUNCATED:
        return "%n bytes needed, %v given";
    case KILN_PARAMS_MISSING:
        return "missing: this model keeps its parameters in a file of their own";
    case KILN_IMAGE_NOT_IMAGE:
        return "this is not an image of a model";
    case KILN_PARAMS_NOT_PARAMS:
        return "this is not a file of parameters";
    case KILN_PARAMS_VERSION:
    case KILN_IMAGE_FORMAT:
        return "format version %v, allowed %a";
    case KILN_PARAMS_OTHER_BUILD:
        return "made by another build than the code";
    case KILN_PARAMS_CORRUPT:
    case KILN_IMAGE_CORRUPT:
        return "damaged";
    case KILN_PARAMS_MEMORY:
        return "the memory is smaller than the file";
    case KILN_SYSTEM_FILE:
        return "cannot open or map the file";
    case KILN_SYSTEM_LIBRARY:
        return "no library of this model that can be loaded";
    case KILN_LOAD_REFUSED:
        return "refused by the program's check (%v)";
    case KILN_SYSTEM_THREADS:
        return "cannot start the threads";
    case KILN_GPU_DRIVER:
        return "the driver of the GPU cannot be loaded";
    case KILN_GPU_ABSENT:
        return "no GPU %v, %n found";
    case KILN_GPU_ARCH:
        return "the model is built for these, the GPU is sm_%v (error %n of its driver)";
    case KILN_GPU_MEMORY:
        return "%n bytes asked of the GPU's driver";
    case KILN_GPU_FAILED:
        return "error %v of the GPU's driver";
    case KILN_LIBRARY:
        return "error %v of the library that computes it";
    case KILN_LIBRARY_ABSENT:
        return "a library that the model calls cannot be loaded";
    case KILN_CPU:
        return "lacks %f, which the model's kernels are compiled for";
    case KILN_NO_VARIANT:
        return "the model has no variant of this name";
    case KILN_IMAGE_MACHINE:
        return "for machine %v, this is %n";
    case KILN_IMAGE_OLD:
        return "version %v, at least %n";
    case KILN_IMAGE_MEMORY:
        return "%n bytes needed at a multiple of %m, %v given";
    }
    return "unknown status";
}

typedef struct line {
    char *text;
    size_t size, length;
} line;

static void put(line *out, const char *text) {
    for (; *text != '\0'; text++, out->length++)
        if (out->length + 1 < out->size)
            out->text[out->length] = *text;
}

static void put_number(line *out, int64_t value) {
    char digits[21] = {0};
    size_t at = sizeof digits - 1;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value, digit;
    do {
        rest = kiln_divide(rest, 10, &digit);
        digits[--at] = (char)('0' + (char)digit);
    } while (rest > 0);
    if (value < 0)
        put(out, "-");
    put(out, digits + at);
}

/* code + bits << 8 + lanes << 16, as "int8" or "float32x4" */
static void put_dtype(line *out, int64_t dtype) {
    static const char *const names[] = {"int",    "uint",    "float", "handle",
                                        "bfloat", "complex", "bool"};
    const int64_t code = dtype & 0xff, bits = dtype >> 8 & 0xff, lanes = dtype >> 16;
    if (code <= kDLBool) {
        put(out, names[code]);
    } else {
        put(out, "dtype code ");
        put_number(out, code);
        put(out, " bits ");
    }
    if (code != kDLBool)
        put_number(out, bits);
    if (lanes != 1) {
        put(out, "x");
        put_number(out, lanes);
    }
}

static void put_allowed(line *out, const kiln_detail *detail) {
    if (detail->multiple > 1) {
        put(out, "multiples of ");
        put_number(out, detail->multiple);
        put(out, " in ");
    }
    put_number(out, detail->min);
    if (detail->max != detail->min) {
        put(out, "..");
        put_number(out, detail->max);
    }
}

static void put_nearest(line *out, const kiln_detail *detail) {
    const bool below = detail->min >= 0, above = detail->max >= 0;
    if (!below && !above) {
        put(out, " with the sizes of the other dimensions");
        return;
    }
    put(out, below && above ? "; nearest sizes served: " : "; nearest size served: ");
    if (below)
        put_number(out, detail->min);
    if (below && above)
        put(out, ", ");
    if (above)
        put_number(out, detail->max);
}

static void put_features(line *out, uint64_t bits) {
    const char *between = "";
    for (uint32_t bit = 0; bit < 64; bit++) {
        const char *name = (bits >> bit & 1u) == 0 ? NULL : kiln_cpu_feature_name(bit);
        if (name == NULL)
            continue;
        put(out, between);
        put(out, name);
        between = ", ";
    }
}

static void put_where(line *out, const kiln_detail *detail) {
    static const char *const places[] = {"session",   "input",  "output", "dimension",
                                         "arena",     "params", "step",   "GPU",
                                         "processor", "state",  "image"};
    const uint32_t where = (uint32_t)detail->where;
    if (detail->name != NULL)
        put(out, detail->name);
    else if (detail->status == KILN_NULL_ARGUMENT && detail->where == KILN_AT_SESSION)
        put(out, "argument"); /* of a call that may have no session */
    else
        put(out, where < sizeof places / sizeof places[0] ? places[where] : "unknown place");
    if (detail->name == NULL && detail->index >= 0) {
        put(out, " ");
        put_number(out, detail->index);
    }
    if (detail->axis >= 0) {
        put(out, " axis ");
        put_number(out, detail->axis);
    }
    put(out, ": ");
}

size_t kiln_detail_text(const kiln_detail *detail, char *text, size_t size) {
    static const kiln_detail no_detail = {.status = KILN_NULL_ARGUMENT, .index = -1, .axis = -1};
    line out = {text, text == NULL ? 0 : size, 0};
    if (detail == NULL)
        detail = &no_detail;
    put_where(&out, detail);
    for (const char *at = message(detail->status); *at != '\0'; at++) {
        const char plain[2] = {*at, '\0'};
        if (*at != '%') {
            put(&out, plain);
            continue;
        }
        switch (*++at) {
        case 'v':
            put_number(&out, detail->value);
            break;
        case 'b':
            put_nearest(&out, detail);
            break;
        case 'f':
            put_features(&out, (uint64_t)detail->value);
            break;
        case 'n':
            put_number(&out, detail->min);
            break;
        case 'm':
            put_number(&out, detail->multiple);
            break;
        case 't':
            put_dtype(&out, detail->value);
            break;
        case 'u':
            put_dtype(&out, detail->min);
            break;
        default:
            put_allowed(&out, detail);
        }
    }
    if (out.size > 0)
        out.text[out.length < out.size ? out.length : out.size - 1] = '\0';
    return out.length;
}
