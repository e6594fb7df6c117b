/* kiln.h: run a model that Kiln has compiled.
 *
 *     static _Alignas(RESNET_ARENA_ALIGN) unsigned char arena[RESNET_ARENA_BYTES];
 *     kiln_session session;
 *     kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
 *     if (kiln_open(&session, &resnet, &config) != KILN_OK)
 *         return 1;
 *     kiln_status status = resnet_run(&session, image, scores);
 *
 * `resnet` and `resnet_run` come from the generated resnet.h. All memory is the caller's: session,
 * arena, pool and tensors. The core is freestanding C11, needs memcpy and memset only, writes no
 * global and takes no lock. A model is constant and may be shared by any number of sessions; one
 * session belongs to one thread at a time. The arena holds nothing between runs, so sessions that
 * never run at the same time may share one. What a model keeps from run to run is the session's
 * state, in memory of its own (config.state), which no other session may use.
 *
 * Every function that can fail returns a kiln_status, and checks everything before it writes
 * anything: on an error no output has been changed. Only errors in the middle of a run
 * (KILN_CANCELLED, KILN_BAD_INDEX, KILN_TOO_MANY, an error of a library or of a GPU) leave
 * outputs partly written.
 */
#ifndef KILN_H
#define KILN_H

#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_ABI          14u /* raised whenever a structure below changes */
#define KILN_MAX_DIMS     16  /* dimensions of one model, free, counted and derived */
#define KILN_PARAMS_ALIGN 64  /* of the params image, in bytes */

/* ---- statuses, grouped by cause -------------------------------------------------------------- */

typedef enum kiln_status {
    KILN_OK = 0,
    KILN_CANCELLED = 1, /* on_step ended the run; outputs may be partly written */

    /* use of the API */
    KILN_NULL_ARGUMENT = 10, /* a pointer that must not be null is null */
    KILN_WRONG_ABI = 11,     /* model and runtime come from different versions of Kiln */
    KILN_NOT_OPEN = 12,      /* the session is not open: kiln_open was not called, or failed */
    KILN_NOT_RUNNING = 13,   /* kiln_step with no step left */
    KILN_WRONG_MODEL = 14,   /* typed entry of one model, session of another */
    KILN_BAD_PLAN = 15,      /* the plan has no such step: the generated source is damaged, or the
                                model is an interface */
    KILN_BUSY = 16, /* a session is called from its own on_step, or a pool while a kernel uses it */

    /* kiln_compatible: a loaded model differs from the one that the program was built with; the
     * statuses of tensors and dimensions below are used too */
    KILN_OTHER_SCALE = 17,     /* scale or zero point of a tensor */
    KILN_OTHER_INTERFACE = 18, /* number of tensors or dimensions, or a dimension of an axis */
    KILN_OTHER_NAME = 19,      /* of a tensor or dimension */

    /* an input or output tensor */
    KILN_NULL_DATA = 20,     /* data or shape is null */
    KILN_BAD_RANK = 21,      /* number of axes */
    KILN_BAD_DTYPE = 22,     /* element type */
    KILN_BAD_SHAPE = 23,     /* the size of a fixed axis differs from the model's */
    KILN_BAD_STRIDES = 24,   /* not compact in row-major order */
    KILN_BAD_DEVICE = 25,    /* not in this processor's memory */
    KILN_BAD_OFFSET = 26,    /* data + byte_offset + size leaves the address space */
    KILN_BAD_ALIGNMENT = 27, /* address is not a multiple of the element's size */
    KILN_OVERLAP = 28,       /* an output overlaps another tensor, or a tensor the arena or state */
    KILN_BAD_GPU = 29,       /* on another GPU than the session */

    /* a symbolic dimension */
    KILN_DIM_RANGE = 30,    /* below its minimum or above its maximum */
    KILN_DIM_MULTIPLE = 31, /* not a multiple of the number that the model requires */
    KILN_DIM_MISMATCH = 32, /* an axis differs from another axis of the same dimension */
    KILN_NO_BUCKET = 33,    /* in range, but no bucket was built for these sizes */

    /* the content of an input */
    KILN_BAD_INDEX = 35, /* an index outside of its axis, where the model checks them; outputs may
                            be partly written */
    KILN_TOO_MANY = 36,  /* more elements than the bound of a size that is counted in a run, or
                            fewer than none; outputs may be partly written */

    /* the arena */
    KILN_ARENA_NULL = 40,
    KILN_ARENA_ALIGNMENT = 41,
    KILN_ARENA_TOO_SMALL = 42,

    /* the state, of a model that keeps values from run to run */
    KILN_STATE_NULL = 45,
    KILN_STATE_ALIGNMENT = 46,
    KILN_STATE_TOO_SMALL = 47,

    /* the params image */
    KILN_PARAMS_MISSING = 50,     /* the model's parameters are a file, which config lacks */
    KILN_PARAMS_ALIGNMENT = 51,   /* not on a multiple of KILN_PARAMS_ALIGN */
    KILN_PARAMS_TRUNCATED = 52,   /* fewer bytes than the header or the model requires */
    KILN_PARAMS_NOT_PARAMS = 53,  /* does not begin with the magic of a params file */
    KILN_PARAMS_VERSION = 54,     /* format of another version of Kiln */
    KILN_PARAMS_OTHER_BUILD = 55, /* made by another build than the code */
    KILN_PARAMS_CORRUPT = 56,     /* header or payload is damaged */
    KILN_PARAMS_MEMORY = 57,      /* kiln_read_params: the memory is smaller than the file */

    /* the operating system (platform_posix.c, threads_pthread.c) */
    KILN_SYSTEM_FILE = 60,    /* cannot open or map; errno says why; detail.name is the path */
    KILN_SYSTEM_THREADS = 61, /* cannot start threads */
    KILN_SYSTEM_LIBRARY = 62, /* kiln_load: no library of this model; detail.name says why, or is
                                 the model's name where the library has no such model */
    KILN_LOAD_REFUSED = 63,   /* by the caller's check; detail.value is what it returned */

    /* a GPU (gpu_cuda.c); detail.name is the driver's own text, detail.index the GPU */
    KILN_GPU_DRIVER = 70, /* the driver's library cannot be loaded */
    KILN_GPU_ABSENT = 71, /* there is no such GPU */
    KILN_GPU_ARCH = 72,   /* no code for this GPU in the model */
    KILN_GPU_MEMORY = 73, /* out of memory, on the GPU or pinned */
    KILN_GPU_FAILED = 74, /* any other error of the driver, detail.value */

    /* an external library; detail.value is its own status, detail.name the subgraph that it
     * computes, or on a GPU the library's text for the status */
    KILN_LIBRARY = 80,
    KILN_LIBRARY_ABSENT = 81, /* it cannot be loaded; detail.name is the loader's text */

    /* the processor; detail.value has a bit for each feature that it lacks, detail.min one for each
     * that the model needs: kiln_cpu_feature_name names them */
    KILN_CPU = 90,        /* it lacks instructions that the kernels are compiled for */
    KILN_NO_VARIANT = 91, /* config.variant: the model has none of this name */

    /* an image of a model that a program was not linked with (kiln_image.h) */
    KILN_IMAGE_NOT_IMAGE = 100, /* does not begin with the magic of an image */
    KILN_IMAGE_FORMAT = 101,    /* format of another version of Kiln */
    KILN_IMAGE_TRUNCATED = 102, /* fewer bytes than the header says */
    KILN_IMAGE_CORRUPT = 103,   /* header or content is damaged */
    KILN_IMAGE_ALIGNMENT = 104, /* its address is not a multiple of its alignment */
    KILN_IMAGE_MACHINE = 105,   /* for another architecture or calling convention */
    KILN_IMAGE_OLD = 106,       /* a version below the least that is accepted */
    KILN_IMAGE_MEMORY = 107     /* memory for its tables: null, too small or not aligned */
} kiln_status;

typedef enum kiln_where {
    KILN_AT_SESSION = 0,
    KILN_AT_INPUT = 1,
    KILN_AT_OUTPUT = 2,
    KILN_AT_DIM = 3,
    KILN_AT_ARENA = 4,
    KILN_AT_PARAMS = 5,
    KILN_AT_STEP = 6,
    KILN_AT_GPU = 7,
    KILN_AT_CPU = 8,
    KILN_AT_STATE = 9,
    KILN_AT_IMAGE = 10
} kiln_where;

/* The value found and the values allowed. Fields without a meaning for an error are 0, or -1 if 0
 * would be an index. Names belong to the model. */
typedef struct kiln_detail {
    kiln_status status;
    kiln_where where;
    const char *name; /* of the tensor or dimension, or null */
    int32_t index;    /* of the tensor, dimension or step, or -1 */
    int32_t axis;     /* or -1 */
    int64_t value;    /* the value found (dtype: code + bits << 8 + lanes << 16) */
    int64_t min, max; /* the allowed values min..max; min alone for bytes needed and for dtypes;
                         KILN_NO_BUCKET: the nearest accepted sizes below and above, -1: none */
    int64_t multiple; /* … and a multiple of this; 0 or 1: any */
} kiln_detail;

/* The enumerator's name, as in "KILN_BAD_RANK"; "unknown status" for any other number. */
const char *kiln_status_name(kiln_status status);

/* Write the error as one line, such as `input_ids axis 1: 65, allowed 1..64`, to text[0..size-1],
 * always ended by a zero when size > 0. Returns the line's length, which may exceed size - 1. */
size_t kiln_detail_text(const kiln_detail *detail, char *text, size_t size);

/* ---- a model, as generated ------------------------------------------------------------------ */

typedef struct kiln_tensor {
    const char *name; /* as in the source model */
    DLDataType dtype;
    int32_t rank;
    const int64_t *shape; /* (rank) n >= 0: that size; -1 - k: dimension k of the run */
    float scale;          /* real = scale * (stored - zero_point); 0: not quantised */
    int32_t zero_point;
} kiln_tensor;

typedef struct kiln_dim {
    const char *name;
    int64_t min, max, multiple; /* inclusive; at most INT32_MAX; multiple >= 1 */
} kiln_dim;

/* One build of the model for a box of sizes, or for a special content of an input at such sizes. */
typedef struct kiln_bucket {
    const char *name;
    size_t arena_bytes;
    uint32_t steps;
    const int32_t *box; /* (2 * dims_count) least and greatest size of each dimension; null:
                           special, or every size is accepted */
} kiln_bucket;

/* A value that a run leaves for the next run: its place in the state, and its value after
 * kiln_open and kiln_reset, `bytes` bytes of the parameters or zeros. */
typedef struct kiln_state {
    const char *name;
    size_t offset, bytes;
    size_t initial; /* in the parameters; SIZE_MAX: zeros */
} kiln_state;

/* A further region of the target's memory that holds a part of the arena. */
typedef struct kiln_region {
    const char *name;
    size_t bytes;
} kiln_region;

/* Parameters in another region than the first ones: an image of their own, with a header. */
typedef struct kiln_params_part {
    const char *name; /* of the region */
    const unsigned char *image;
    size_t bytes; /* without the header */
} kiln_params_part;

/* The caller's memory in a region. */
typedef struct kiln_memory {
    void *data;
    size_t bytes;
} kiln_memory;

typedef struct kiln_pool kiln_pool;
typedef struct kiln_session kiln_session;
typedef struct kiln_model kiln_model;
typedef struct kiln_config kiln_config;

/* The part of a run that a step reads. */
typedef struct kiln_frame {
    unsigned char *arena;
    const unsigned char *params; /* the payload, after the header */
    const DLTensor *inputs;      /* (inputs of the model) */
    const DLTensor *outputs;     /* (outputs of the model) */
    int64_t *dims;               /* (free, counted and derived ones of the model) in this run */
    kiln_pool *pool;             /* or null: one thread */
    kiln_detail *detail;         /* of the session: a step stores its error here */
    unsigned char *state;        /* of the session; or null */
    const kiln_memory *regions;  /* (regions of the model) the caller's, or null */
} kiln_frame;

/* The functions by which the core runs a model on a GPU; all but `close` return the status that
 * they store in session->detail. */
typedef struct kiln_gpu_functions {
    kiln_status (*open)(kiln_session *session, const kiln_model *model);
    void (*close)(kiln_session *session);
    kiln_status (*begin)(kiln_session *session); /* copies the inputs */
    kiln_status (*step)(kiln_session *session);  /* one step; copies the outputs after the last */
    kiln_status (*run)(kiln_session *session);   /* all steps, in place of `step` */
} kiln_gpu_functions;

/* The functions of the core for dynamic dimensions; see dynamic.c. */
typedef struct kiln_dynamic_functions {
    /* Check range and multiple of one dimension; stores the values found and allowed in error. */
    kiln_status (*check)(const kiln_model *model, uint32_t index, int64_t value,
                         kiln_detail *error);
    void (*derive)(const kiln_model *model, int64_t *dims); /* kiln_derive */
    /* The error for sizes that no bucket accepts; detail may be null. */
    kiln_status (*refuse)(const kiln_model *model, const int64_t *dims, kiln_detail *detail);
} kiln_dynamic_functions;

/* The steps of a model with kernels for one kind of processor. */
typedef struct kiln_variant {
    const char *name;
    uint64_t cpu_features; /* that its kernels need, as kiln_cpu_features has them */
    /* Run one step of one bucket. Returns 0, -1 if there is no such step, KILN_STEP_DETAIL with an
     * error in frame->detail, a library's own status, which is positive, or, at the beginning and
     * the end of a loop, KILN_STEP_JUMP of the step that comes next. */
    int32_t (*step)(const kiln_frame *frame, uint32_t bucket, uint32_t step);
} kiln_variant;

/* A dimension is free (read from an axis of an input), counted (the number of elements that an
 * operator such as NonZero finds, which a step of the run computes), or derived (the size of an
 * axis that follows from these, such as seq + 1). They are numbered in this order. Until its step
 * has run, a counted dimension has its greatest size, for which outputs must have room. */
struct kiln_model {
    uint32_t abi; /* KILN_ABI of the generator */
    const char *name;
    uint32_t inputs_count, outputs_count, dims_count;
    uint32_t derived_count; /* of the counted and the derived dimensions */
    uint32_t buckets_count;
    const kiln_tensor *inputs;
    const kiln_tensor *outputs;
    const kiln_dim *dims; /* (dims_count) the free ones */
    const kiln_bucket *buckets;
    /* All variants compute the same from the same parameters in the same arena. kiln_open chooses
     * the last one that the processor can run; each needs all features that the first needs. */
    const kiln_variant *variants; /* (variants_count) at least 1 */
    uint32_t variants_count;
    size_t arena_align;
    size_t params_bytes;         /* payload, without the header */
    const unsigned char *hash;   /* (32) SHA-256 over plan and parameters */
    const unsigned char *params; /* image linked into the program (header, payload), or null */
    int32_t params_trusted;      /* 1: linked with the code, so its checksum is not verified */
    /* Bucket for these dimensions, -1: none. Null if one bucket accepts all sizes. */
    int32_t (*select)(const int64_t *dims);
    /* Fill in the counted dimensions, with their greatest sizes, and the derived ones; the free
     * ones are in their ranges. Null when there is none. */
    void (*derive)(int64_t *dims);
    /* The bucket for the inputs' content: `bucket`, which was chosen by sizes, or a special case of
     * it. Null if there are no special cases. */
    uint32_t (*special)(const kiln_frame *frame, uint32_t bucket);
    /* Let external libraries prepare their data from the parameters; returns the status that it
     * stores in detail. Null if there is nothing to prepare, and on a GPU. */
    kiln_status (*open)(const kiln_frame *frame, kiln_detail *detail);
    const kiln_gpu_functions *gpu; /* null: runs on this processor */
    const void *gpu_model;         /* the model's data for these functions */
    const kiln_state *states;      /* (states_count) what runs leave for the next one */
    uint32_t states_count;
    size_t state_bytes; /* that a session needs for them, at a multiple of arena_align */
    /* kiln_open_state, or null: a model without state links none of it. */
    kiln_status (*open_state)(const kiln_model *model, const kiln_config *config,
                              const unsigned char *params, kiln_detail *detail);
    /* &kiln_dynamic, or null: a model without dimensions links none of it. */
    const kiln_dynamic_functions *dynamic;
    const kiln_region *regions; /* (regions_count) of the arena, besides the first one */
    uint32_t regions_count;
    /* kiln_open_regions, or null */
    kiln_status (*open_regions)(const kiln_model *model, const kiln_config *config,
                                kiln_detail *detail);
    /* kiln_in_region, or null: whether memory overlaps a further region */
    int32_t (*in_region)(const kiln_model *model, const kiln_config *config, const void *data,
                         size_t bytes);
    const kiln_params_part *parts; /* (parts_count) of the parameters, besides the first one */
    uint32_t parts_count;
    /* kiln_check_parts, or null */
    kiln_status (*check_parts)(const kiln_model *model, uint32_t flags, kiln_detail *detail);
};

/* ---- sessions ------------------------------------------------------------------------------- */

/* config.flags: trust the payload of the params image, read none of it */
#define KILN_SKIP_CHECKSUM 1u
/* config.flags: kiln_open leaves the state's memory as it is, as an earlier session left it */
#define KILN_KEEP_STATE 2u

struct kiln_config {
    void *arena;        /* <M>_ARENA_BYTES at a multiple of <M>_ARENA_ALIGN; less suffices for a */
    size_t arena_bytes; /* caller that never uses the larger buckets */
    const void *params; /* params.bin in memory, multiple of KILN_PARAMS_ALIGN; null: linked in */
    size_t params_bytes;
    kiln_pool *pool; /* null: the caller's thread computes alone */
    uint32_t flags;
    /* Called before every step; anything but 0 cancels the run. Null: never called. What it
     * may call is listed under "states of a session". */
    int32_t (*on_step)(void *user, uint32_t step);
    void *user;
    int32_t gpu;      /* number of the GPU, as its driver counts; only for models on a GPU */
    void *gpu_stream; /* CUstream that runs are put on, see kiln_cuda.h; null: the session's own */
    const char *variant; /* name of the variant to run; null: the last that the processor can run */
    void *state; /* <M>_STATE_BYTES at a multiple of <M>_ARENA_ALIGN; one for each session */
    size_t state_bytes;
    /* (<M>_REGIONS) memory for the parts of the arena in further regions, <M>_ARENA_<REGION>_BYTES
     * at a multiple of <M>_ARENA_ALIGN each; null where the model has none. The array must live as
     * long as the session is used. */
    const kiln_memory *regions;
};

/* Caller's memory, any contents before kiln_open. A caller may read it, but must not write it. */
struct kiln_session {
    const kiln_model *model;     /* null: not open */
    const kiln_variant *variant; /* the variant that runs */
    kiln_config config;
    kiln_frame frame;
    int64_t dims[KILN_MAX_DIMS];
    uint32_t bucket;      /* the one that runs */
    uint32_t step, steps; /* next step and number of steps; equal: no run is under way */
    uint32_t in_on_step;  /* 1 while on_step is being called */
    kiln_detail detail;
    void *gpu; /* the session's resources on a GPU; else null */
};

/* ---- states of a session
 *
 * Before kiln_open a session's memory may hold anything, and no function but kiln_open may be given
 * it; memory of zeros is a closed session. In every other state every function may be called:
 *
 *                     closed          open            running         from on_step of a run
 *     kiln_open       opens           opens again     opens again     opens again, ends the run
 *     kiln_close      nothing         closes          closes          closes, ends the run
 *     kiln_run        KILN_NOT_OPEN   runs            runs anew       KILN_BUSY
 *     kiln_begin      KILN_NOT_OPEN   begins          begins anew     KILN_BUSY
 *     kiln_step       KILN_NOT_OPEN   NOT_RUNNING     one step        KILN_BUSY
 *     kiln_steps_left 0               0               1 or more       1 or more, with the next one
 *     kiln_cancel     nothing         nothing         drops the run   ends the run
 *     kiln_reset      KILN_NOT_OPEN   resets          resets, drops   KILN_BUSY
 *                                                     the run
 *     kiln_error      the last error  the last error  the last error  the last error
 *
 * closed: kiln_close was called, or kiln_open returned an error. open: kiln_open worked, and no run
 * is under way: none began, or the last one ended, failed or was cancelled. running: between
 * kiln_begin and the last kiln_step. A run that on_step ends returns KILN_CANCELLED, and uses the
 * arena and the tensors no more; the session's own memory must stay until it has returned. A call
 * that returns KILN_BUSY does not change the run. Other sessions may be run from on_step, with an
 * arena of their own. Functions without a session may always be called.
 *
 * kiln_open cannot detect that a session is open: a session on a GPU that is opened again without
 * kiln_close leaks its resources there. */

/* Bind session to model, choose its variant, check processor, arena, state and params, and give the
 * state its initial values (see KILN_KEEP_STATE). Arena, state, params and pool must live as long
 * as the session is used; config itself need not. On a CPU there is nothing to close. */
kiln_status kiln_open(kiln_session *session, const kiln_model *model, const kiln_config *config);

/* Close a session: release its resources on a GPU. Does nothing for a session that is not open,
 * and for null. */
void kiln_close(kiln_session *session);

/* Run once. inputs and outputs are arrays, in the model's order, of compact row-major tensors in
 * this processor's memory (strides may be null, and so may the data of a tensor without elements).
 */
kiln_status kiln_run(kiln_session *session, const DLTensor *inputs, const DLTensor *outputs);

/* Run step by step, to time each step or to pause between two: kiln_begin checks everything; then
 * call kiln_step while kiln_steps_left. The tensors must stay as they are until the last step. A
 * new kiln_begin, or kiln_cancel, drops the remaining steps. */
kiln_status kiln_begin(kiln_session *session, const DLTensor *inputs, const DLTensor *outputs);
kiln_status kiln_step(kiln_session *session);
uint32_t kiln_steps_left(const kiln_session *session);
void kiln_cancel(kiln_session *session);

/* Give the state its initial values, as kiln_open does: the next run is the first of a sequence. A
 * run that ended before its last step leaves the state partly written: reset it then. Returns
 * KILN_OK for a model without state. */
kiln_status kiln_reset(kiln_session *session);

/* The last error of this session (status KILN_OK: the last call worked). */
const kiln_detail *kiln_error(const kiln_session *session);

/* Check a params image again, its CRC included: an image in flash that may have lost a bit, or one
 * that others may have written to. params null: the image linked with the code, whose payload
 * kiln_open does not read (params_trusted); bytes is then ignored. Returns the statuses of
 * kiln_open, mostly KILN_PARAMS_CORRUPT, and KILN_OK for a model without parameters. detail may be
 * null. */
kiln_status kiln_check_params(const kiln_model *model, const void *params, size_t bytes,
                              kiln_detail *detail);

/* ---- questions that run nothing ------------------------------------------------------------- */

typedef struct kiln_plan_result {
    uint32_t bucket;
    uint32_t steps;
    size_t arena_bytes;
    int64_t
        dims[KILN_MAX_DIMS]; /* the free ones, the counted ones at their greatest, the derived */
} kiln_plan_result;

/* The bucket for given sizes, and the memory that it needs. If an input's content selects a special
 * case, which only a run determines, session.bucket is another one, with other steps and no larger
 * arena. kiln_plan reads only rank, dtype and shape of the inputs; kiln_plan_dims takes the
 * dimensions themselves, in the model's order. detail may be null. */
kiln_status kiln_plan(const kiln_model *model, const DLTensor *inputs, kiln_plan_result *result,
                      kiln_detail *detail);
kiln_status kiln_plan_dims(const kiln_model *model, const int64_t *dims, kiln_plan_result *result,
                           kiln_detail *detail);

/* Write the tensor's shape for these dimensions (as in kiln_plan_result; null where the model has
 * none) to shape[0..rank-1], unless that is null. Returns its bytes; SIZE_MAX if they exceed the
 * address space or the tensor is null. With it a caller computes the size of an output before it
 * has memory for it:
 *
 *     kiln_plan_result plan;
 *     if (kiln_plan(model, inputs, &plan, &detail) == KILN_OK)
 *         bytes = kiln_tensor_shape(&model->outputs[0], plan.dims, shape);
 */
size_t kiln_tensor_shape(const kiln_tensor *tensor, const int64_t *dims, int64_t *shape);

/* The shape and bytes of output `index` after the session's last run. If the model counts elements
 * (NonZero, NonMaxSuppression), they can be less than those of kiln_plan, for which the output must
 * have room: the elements are then at the start of the output's memory, compact in this shape, and
 * the bytes after them are unspecified. Returns 0 without an open session, and for an output that
 * the model does not have. */
size_t kiln_output_shape(const kiln_session *session, uint32_t index, int64_t *shape);

/* A DLTensor over data, compact, on this processor. shape is only ever read. */
DLTensor kiln_bind(const kiln_tensor *tensor, const int64_t *shape, const void *data);

/* ---- threads: threads_none.c or threads_pthread.c, whichever was linked -----------------------
 */

#define KILN_POOL_MAX_THREADS 64

/* Process tasks [begin, end) of a kernel. */
typedef void (*kiln_task)(const void *args, int32_t begin, int32_t end);

/* Caller's memory; not to be moved or copied while open. */
struct kiln_pool {
    /* kiln_parallel of the program that opened the pool, which images call; null: none was opened
     */
    void (*parallel)(kiln_pool *pool, kiln_task task, const void *args, int32_t extent);
    uint64_t opaque[192];
};

/* Start a pool of `threads` threads, the caller's own among them; 0 or less: one for each
 * processor. Sessions may share it: while one uses it, the others work in their own thread. The
 * memory may hold anything but an open pool, whose threads would be lost. On an error the pool is
 * closed. Without an operating system a pool has the caller's thread alone; else more than
 * KILN_POOL_MAX_THREADS are KILN_SYSTEM_THREADS. */
kiln_status kiln_pool_open(kiln_pool *pool, int32_t threads);
/* End the pool's threads. Returns KILN_BUSY, and does nothing, while a kernel uses the pool: if
 * called from a task, or from another thread than the one that runs. A pool may be closed from
 * on_step; the run then continues in the caller's thread. Does nothing for a closed pool, memory of
 * zeros and null. In a child process after fork() the caller computes alone, and closing waits for
 * no thread. */
kiln_status kiln_pool_close(kiln_pool *pool);
/* Number of the pool's threads; 1 for a closed pool and for null. */
int32_t kiln_pool_threads(const kiln_pool *pool);

/* Process all tasks [0, extent), each once, by calls of `task`, then return. The caller's thread
 * processes all of them if pool is null or closed. */
void kiln_parallel(kiln_pool *pool, kiln_task task, const void *args, int32_t extent);

/* ---- the processor: cpu_x86.c, cpu_arm_linux.c or cpu_none.c, whichever was linked -------------
 *
 * These files, the rest of the runtime and the generated plan are compiled for the oldest processor
 * of their architecture, so that on every processor kiln_open can report the features that it lacks
 * for a model's kernels. */

/* A bit for each feature that this processor has and its operating system supports. All bits are
 * set if the processor cannot be queried. Linux grants tile registers (AMX) on request: this
 * function requests them, and sets their bit, only if `wanted` has that bit. Afterwards sigaltstack
 * requires 12 KB or more; Linux refuses the request if a smaller signal stack is in use already. */
uint64_t kiln_cpu_features(uint64_t wanted);
/* LLVM's name of the feature of a bit, 0..63; null for a bit without a feature. */
const char *kiln_cpu_feature_name(uint32_t bit);

/* ---- platform_posix.c, not in a freestanding build --------------------------------------------
 */

/* Map a params.bin read-only, to be passed as config.params and config.params_bytes. Costs no
 * memory of its own: processes share the pages, which are read when first touched. The file must
 * not be written to or cut short while it is mapped: results would change in the middle of a run,
 * or the system would end the program (SIGBUS). Replace it by renaming another file onto it. Where
 * that cannot be relied on, use kiln_read_params. On an error *params is null and *bytes 0. */
kiln_status kiln_map_params(const char *path, const void **params, size_t *bytes);
/* Unmap it; does nothing for null. No session may use the image any more. */
void kiln_unmap_params(const void *params, size_t bytes);

/* Read a params.bin into the caller's memory, <M>_PARAMS_FILE_BYTES at a multiple of
 * KILN_PARAMS_ALIGN, to be passed as config.params with *bytes as config.params_bytes. What happens
 * to the file afterwards does not matter. KILN_PARAMS_MEMORY where the memory is too small; on an
 * error *bytes is 0. */
kiln_status kiln_read_params(const char *path, void *memory, size_t memory_bytes, size_t *bytes);

/* ---- models that come while a program runs: compatible.c, load_linux.c ------------------------
 *
 *     kiln_loaded next;
 *     if (kiln_load(&next, "/data/libnet.so", &net, signed_by_us, NULL, &detail) == KILN_OK) {
 *         kiln_close(&session);
 *         kiln_open(&session, next.model, &config);     from here on, the new one
 *     }
 *
 * Models are independent of each other: sessions of the old and of the new one may run at the same
 * time, and a program changes from one to the other between two runs, each thread when it likes. */

/* Whether `model` can replace `built` in a program: compares the ABI, the names, types, ranks,
 * shapes and scales of inputs and outputs in their order, and the dimensions, whose ranges may be
 * wider in `model`. detail may be null. */
kiln_status kiln_compatible(const kiln_model *model, const kiln_model *built, kiln_detail *detail);

/* Accept the bytes of a library, before any of its code runs: 0, or a reason to refuse it. Call
 * kiln_verify here, see docs/trust.md. */
typedef int32_t (*kiln_load_check)(void *user, const void *bytes, size_t count);

typedef struct kiln_loaded {
    const kiln_model *model; /* null: none */
    void *library;
    int32_t file;
} kiln_loaded;

/* Load the model with the name of `built` from lib<model>.so of another bundle, which must be
 * compatible with it. The file is copied first; what happens to it afterwards does not matter. On
 * an error nothing is loaded; detail may be null. Programs for glibc before 2.34 need -ldl. The
 * library's own libraries are searched for where the system has them, not next to the file. */
kiln_status kiln_load(kiln_loaded *loaded, const char *path, const kiln_model *built,
                      kiln_load_check check, void *user, kiln_detail *detail);
/* Unload the model; does nothing for one that is not loaded. No session may be open for it any
 * more. */
void kiln_unload(kiln_loaded *loaded);

/* ---- for generated plans ----------------------------------------------------------------------
 */

static inline const void *kiln_at_input(const kiln_frame *frame, uint32_t index, size_t offset) {
    const DLTensor *tensor = &frame->inputs[index];
    if (tensor->data == NULL) /* no elements */
        return NULL;
    return (const unsigned char *)tensor->data + tensor->byte_offset + offset;
}

static inline void *kiln_at_output(const kiln_frame *frame, uint32_t index, size_t offset) {
    const DLTensor *tensor = &frame->outputs[index];
    if (tensor->data == NULL) /* no elements */
        return NULL;
    return (unsigned char *)tensor->data + tensor->byte_offset + offset;
}

static inline void *kiln_at_arena(const kiln_frame *frame, size_t offset) {
    return frame->arena + offset;
}

static inline void *kiln_at_region(const kiln_frame *frame, uint32_t number, size_t offset) {
    return (unsigned char *)frame->regions[number - 1].data + offset;
}

#define KILN_PARAMS_HEADER 128 /* bytes of an image before its parameters */

static inline const void *kiln_at_part(const unsigned char *image, size_t offset) {
    return image + KILN_PARAMS_HEADER + offset;
}

/* regions.c: check the memory of further regions, and the images of further parameters. */
kiln_status kiln_open_regions(const kiln_model *model, const kiln_config *config,
                              kiln_detail *detail);
int32_t kiln_in_region(const kiln_model *model, const kiln_config *config, const void *data,
                       size_t bytes);
kiln_status kiln_check_parts(const kiln_model *model, uint32_t flags, kiln_detail *detail);

/* state.c: check the state's memory, and give it its first values unless config.flags keeps it. */
kiln_status kiln_open_state(const kiln_model *model, const kiln_config *config,
                            const unsigned char *params, kiln_detail *detail);

static inline void *kiln_at_state(const kiln_frame *frame, size_t offset) {
    return frame->state + offset;
}

static inline const void *kiln_at_params(const kiln_frame *frame, size_t offset) {
    return frame->params + offset;
}

/* value / divisor, rounded down; divisor >= 1. By shift and subtract: not every processor divides,
 * and the compiler's helper function would be a dependency. */
static inline int32_t kiln_quotient(int32_t value, int32_t divisor) {
    const uint32_t by = (uint32_t)divisor;
    uint32_t left = value < 0 ? ~(uint32_t)value : (uint32_t)value, rest = 0, quotient = 0;
    for (int32_t bit = 0; bit < 32; bit++) {
        rest = rest << 1 | left >> 31;
        left <<= 1;
        quotient <<= 1;
        if (rest >= by) {
            rest -= by;
            quotient |= 1;
        }
    }
    return value < 0 ? -1 - (int32_t)quotient : (int32_t)quotient;
}

/* The remainder of the same division: 0..divisor - 1. */
static inline int32_t kiln_remainder(int32_t value, int32_t divisor) {
    return (int32_t)(value - (int64_t)kiln_quotient(value, divisor) * divisor);
}

/* Whether every element of input `index` has the bytes of `element`, or the input is `bytes` bytes
 * that equal those of the parameters at `offset`. Null data is not looked at: no elements, no
 * match.
 */
int32_t kiln_input_filled(const kiln_frame *frame, const kiln_tensor *about, uint32_t index,
                          const unsigned char *element);
int32_t kiln_input_equals(const kiln_frame *frame, const kiln_tensor *about, uint32_t index,
                          size_t offset, size_t bytes);

#define KILN_STEP_DETAIL     (-2)
#define KILN_STEP_JUMP(step) (-3 - (step))

/* The tensor whose indices a step checks, and the axis that they index. */
typedef struct kiln_index_check {
    const char *name;
    int32_t step, axis;
    int32_t wraps; /* 1: negative ones count from the end */
} kiln_index_check;

/* 0 when element `first` of each of `rows` rows of `stride` indices is inside an axis of `size`. */
int32_t kiln_check_indices_int32(const kiln_frame *frame, const kiln_index_check *check,
                                 const int32_t *indices, int32_t rows, int32_t stride,
                                 int32_t first, int32_t size);
int32_t kiln_check_indices_int64(const kiln_frame *frame, const kiln_index_check *check,
                                 const int64_t *indices, int32_t rows, int32_t stride,
                                 int32_t first, int32_t size);

/* What a step counts: the name of the tensor, for errors, the step, the number of the dimension,
 * and what computes the derived ones anew; null: there are none. */
typedef struct kiln_counted {
    const char *name;
    int32_t step, dim;
    void (*derive)(int64_t *dims);
} kiln_counted;

/* Give the dimension the size *count; KILN_TOO_MANY above the size that it has, its greatest. */
int32_t kiln_count(const kiln_frame *frame, const kiln_counted *about, const int64_t *count,
                   const void *rows);

/* dynamic.c */
extern const kiln_dynamic_functions kiln_dynamic;

/* Fill in the counted and derived dimensions; zeros where a free one is out of its range, which the
 * checks of a run refuse. */
void kiln_derive(const kiln_model *model, int64_t *dims);

/* ---- traffic: counts of the sizes of runs, from which buckets are chosen ----
 *
 *     static kiln_traffic_row rows[256];
 *     kiln_traffic traffic;
 *     kiln_traffic_open(&traffic, &net, rows, 256);
 *     kiln_traffic_count(&traffic, &session);      after each run that worked
 *     kiln_traffic_write(&traffic, write, file);
 *
 * Contents are counted too, from which special cases are chosen: how often all elements of an input
 * are 0, or 1.
 *
 *     static kiln_traffic_content contents[256 * NET_INPUTS];
 *     kiln_traffic_contents(&traffic, contents, 256 * NET_INPUTS);    after kiln_traffic_open
 *     const void *data[] = {ids, mask};
 *     kiln_traffic_count_inputs(&traffic, &session, data);    in place of kiln_traffic_count
 *
 * A program that does not call these links none of it. A table belongs to one thread at a time: a
 * session each has one each, and the texts of several are one traffic file when all headers but the
 * first are left out. */
typedef struct kiln_traffic_row {
    uint32_t count; /* 0: the row is free; at its greatest value further runs are missed ones */
    int32_t dims[KILN_MAX_DIMS];
} kiln_traffic_row;

/* Runs by the content of an input, as stored: a quantised 0 is its zero point. */
typedef struct kiln_traffic_content {
    uint32_t zeros, ones, other;
} kiln_traffic_content;

typedef struct kiln_traffic {
    const kiln_model *model;
    kiln_traffic_row *rows;         /* the caller's */
    kiln_traffic_content *contents; /* (rows_count, inputs of the model) the caller's, or null */
    uint32_t rows_count;
    uint64_t missed; /* runs that found no row: all hold other sizes */
} kiln_traffic;

/* Writes `bytes` bytes; another value than 0 ends the writing. */
typedef int32_t (*kiln_write)(void *user, const char *text, size_t bytes);

/* KILN_NULL_ARGUMENT if a pointer is null or there are no rows: the table then counts nothing. */
kiln_status kiln_traffic_open(kiln_traffic *traffic, const kiln_model *model,
                              kiln_traffic_row *rows, size_t count);
/* Count the sizes of the session's last run. Searches all rows if none has these sizes yet. */
void kiln_traffic_count(kiln_traffic *traffic, const kiln_session *session);
/* Count contents as well, in memory for one per row and input: count >= rows * inputs_count;
 * KILN_NULL_ARGUMENT where it is less, or one is null. Called right after kiln_traffic_open. */
kiln_status kiln_traffic_contents(kiln_traffic *traffic, kiln_traffic_content *contents,
                                  size_t count);
/* kiln_traffic_count, and what the inputs' elements were: (inputs_count) the address of each, in
 * this processor's memory; null: not looked at. Inputs without elements are not counted. The
 * comparison of an input ends at the first element that differs from its first one. */
void kiln_traffic_count_inputs(kiln_traffic *traffic, const kiln_session *session,
                               const void *const *data);
/* CSV: a column for each dimension, count, and <input>:zeros, :ones and :other where contents are
 * counted. Missed runs are a row without sizes. 0, what `write` returned, or -1 for null. The
 * file is the caller's: programs that write to the same one take turns, by a lock of theirs. */
int32_t kiln_traffic_write(const kiln_traffic *traffic, kiln_write write, void *user);

/* ---- traces: when each step of a run began and ended ----
 *
 *     static kiln_trace_event events[512];
 *     kiln_trace trace = {.model = &net, .label = net_step_label, .clock = ticks,
 *                         .ticks_per_second = 1000000000, .events = events, .capacity = 512};
 *     kiln_trace_open(&trace);
 *     kiln_trace_run(&trace, &session, inputs, outputs);      in place of kiln_run
 *     kiln_trace_write(&trace, write, file);
 *
 * The text is a trace.json for Perfetto (ui.perfetto.dev) or chrome://tracing: a slice for each
 * run, with its bucket and sizes, and one inside of it for each step, with its operators. A program
 * that does not call these links none of it. A trace belongs to one thread at a time. */

/* In kiln_trace_event.step, in place of a step: the whole run, and, right after it, the size of
 * each of its free dimensions, in `begin`. */
#define KILN_TRACE_RUN  UINT32_MAX
#define KILN_TRACE_SIZE (UINT32_MAX - 1u)

typedef struct kiln_trace_event {
    uint64_t begin, end; /* as `clock` counts */
    uint32_t step, bucket;
} kiln_trace_event;

typedef struct kiln_trace {
    /* the caller's, before kiln_trace_open */
    const kiln_model *model;
    const char *(*label)(uint32_t bucket, uint32_t step); /* <m>_step_label; null: no operators */
    uint64_t (*clock)(void *user); /* ticks, from any start, which never fall */
    void *user;
    uint64_t ticks_per_second; /* at least 1 */
    kiln_trace_event *events;  /* (capacity) a run takes one, one for each of its free dimensions,
                                  and one for each step */
    uint32_t capacity;
    /* the runtime's */
    uint32_t count;  /* of the events in use */
    uint32_t run;    /* the event of the present run; UINT32_MAX: none */
    uint64_t missed; /* runs and steps that found no room */
} kiln_trace;

/* Empty the trace. KILN_NULL_ARGUMENT where the caller has set no model, clock, events, capacity
 * or ticks_per_second. */
kiln_status kiln_trace_open(kiln_trace *trace);
/* kiln_begin, kiln_step and kiln_run with the time taken, and the same statuses. They record
 * nothing for a session of another model. kiln_trace_run runs a model on a GPU step by step. */
kiln_status kiln_trace_begin(kiln_trace *trace, kiln_session *session, const DLTensor *inputs,
                             const DLTensor *outputs);
kiln_status kiln_trace_step(kiln_trace *trace, kiln_session *session);
kiln_status kiln_trace_run(kiln_trace *trace, kiln_session *session, const DLTensor *inputs,
                           const DLTensor *outputs);
/* JSON, in pieces of at most 64 bytes. 0, what `write` returned, or -1 for null. */
int32_t kiln_trace_write(const kiln_trace *trace, kiln_write write, void *user);

#ifdef __cplusplus
}
#endif
#endif
