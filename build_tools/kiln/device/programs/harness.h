/* harness.h: common code of the programs that test a bundle on its target.
 *
 * They are compiled once for a target, and linked with model.c, which says what differs from model
 * to model.
 *
 * Vector files, both ways, in the target's byte order (all of Kiln's are little-endian):
 *     8 bytes  "KILNVEC1"
 *     uint32   vectors, uint32 tensors per vector
 *     then each tensor: uint32 rank, uint32 0, uint64 bytes, int64 shape[rank], the elements
 */
#ifndef KILN_HARNESS_H
#define KILN_HARNESS_H

#include <stdint.h>
#include <stdio.h>

#include "harness_model.h"

#define HARNESS_MAX_RANK    64 /* as NumPy's arrays, in which a build has the golden vectors */
#define HARNESS_MAX_REGIONS 8

/* Memory with a known pattern around it, to detect writes beyond its ends. */
typedef struct guarded {
    unsigned char *block; /* from malloc */
    size_t block_bytes;
    unsigned char *data; /* inside the block: `bytes` bytes at a multiple of `align` plus `skew` */
    size_t bytes;
    int placed; /* 1: the block is not from malloc */
} guarded;

/* One tensor of a run and its memory. */
typedef struct tensor {
    const kiln_tensor *about;
    int64_t shape[HARNESS_MAX_RANK];
    guarded memory;
    DLTensor view;
    int64_t made_shape[HARNESS_MAX_RANK]; /* of an output, as the last run has left it */
    size_t made;                          /* bytes of that shape */
} tensor;

/* Tensors, arena and plan of one vector. */
typedef struct workload {
    tensor *inputs;   /* (inputs of the model) */
    tensor *outputs;  /* (outputs of the model) */
    DLTensor *input;  /* (inputs of the model) the views, as arguments of kiln_run */
    DLTensor *output; /* (outputs of the model) the views, as arguments of kiln_run */
    guarded arena;
    guarded regions[HARNESS_MAX_REGIONS]; /* (regions of the model) */
    kiln_memory memory[HARNESS_MAX_REGIONS];
    guarded state;
    kiln_plan_result plan;
} workload;

/* The variant of the model that programs run; null: the one that kiln_open chooses. */
extern const char *harness_variant;

/* How many vectors follow one another before the model's state is set back; 1: none. */
extern uint32_t harness_runs;

/* Take a leading `variant NAME`, then a leading `runs NUMBER`, from a program's arguments, for
 * harness_variant and harness_runs. */
void harness_arguments(int *argc, char ***argv);

/* Nanoseconds of a clock that only goes forward. */
uint64_t harness_now(void);

/* Print the session's error to stderr and exit with status 3, unless `status` is KILN_OK. */
void harness_must(const kiln_session *session, kiln_status status);

/* Memory from malloc. Where there is none, print what `purpose` needs and what the machine has, and
 * exit with status 3. */
void *harness_memory(const char *purpose, size_t bytes);

/* Memory of exactly `bytes` at a multiple of `align` plus `skew`, guarded, filled with zeros. */
guarded guarded_make(const char *purpose, size_t bytes, size_t align, size_t skew);
/* The same in a region of the machine's memory, whose guards are as large as it allows; like
 * guarded_make where the machine has no such region, or a null name. */
guarded guarded_place(const char *region, size_t bytes, size_t align);
void guarded_fill(const guarded *g, unsigned char fill);
int guarded_holds(const guarded *g, unsigned char fill); /* 1: every byte is `fill` */
int guarded_intact(const guarded *g);                    /* 1: the pattern around it is unchanged */
void guarded_free(guarded *g);

/* Zeroed memory for `count` elements of `size` bytes; not null for a count of 0. */
void *array_of(size_t count, size_t size);
void array_free(void *memory);

FILE *vectors_open(const char *path, uint32_t tensors, uint32_t *vectors);
FILE *vectors_create(const char *path, uint32_t vectors, uint32_t tensors);
void vectors_close(FILE *file);
void vectors_put(FILE *file, const tensor *t); /* an output, as workload_made has seen it */

/* Allocate `bytes` bytes for a tensor whose `about` and `shape` are set. */
void tensor_make(tensor *t, size_t bytes);

/* Read one tensor of a vector file into newly allocated memory; free it with guarded_free. */
void tensor_read(tensor *t, const kiln_tensor *about, FILE *file);

/* Read the next vector's inputs; allocate outputs and arena with the sizes of kiln_plan for these
 * inputs. Inputs and outputs have only their element's alignment, which is all the API requires. */
void workload_read(workload *w, FILE *file);
void workload_fill(const workload *w, unsigned char fill); /* outputs and arena */
int workload_intact(const workload *w);
/* Note the shape of each output after a run, and overwrite what follows its elements with zeros. */
void workload_made(const workload *w, const kiln_session *session);
void workload_free(workload *w);

/* The params image from the file `path`, aligned for Kiln, with `KILN_PARAMS_ALIGN` spare bytes
 * after it; null where the parameters are linked with the model, and for a model without any. */
unsigned char *params_loaded(const char *path);

/* Null when nothing but the inputs has been written since workload_fill(w, fill); otherwise a text
 * that names the memory written. */
const char *workload_written(const workload *w, unsigned char fill);

/* A valid configuration for this workload. */
kiln_config workload_config(const workload *w, const unsigned char *image);

/* Try wrong arguments, one at a time, on an otherwise valid workload; print a `check` line for
 * each. `image` is a params image (null: the model has none) that is modified and restored. */
void check_errors(const workload *w, unsigned char *image);

/* Only the checks of check_errors for the arena: null, one byte too small, misaligned. */
void check_arena(const workload *w, unsigned char *image);

/* Run with the shapes of each vector in the file `path`; print a `refused` line for each. */
void check_refused(const workload *w, unsigned char *image, const char *path);

/* Null when kiln_plan_dims and harness_typed_plan give the result that kiln_plan gave for this run;
 * otherwise a text with the difference. */
const char *plan_fault(const workload *w);

#endif
