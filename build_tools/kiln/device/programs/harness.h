/* harness.h: what the programs that try a bundle on its target share.
 *
 * The bundle's header and model come from the build:
 *     -DKILN_HEADER="resnet.h" -DKILN_MODEL=resnet
 * -DKILN_PARAMS_FILE_BYTES=RESNET_PARAMS_FILE_BYTES
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

#include KILN_HEADER

#define HARNESS_MAX_RANK 8

/* Memory with a known pattern around it, so that a write beyond its ends is seen. */
typedef struct guarded {
    unsigned char *block; /* what malloc gave */
    size_t block_bytes;
    unsigned char *data; /* `bytes` of them at the alignment asked for, plus the skew */
    size_t bytes;
} guarded;

/* One tensor of a run and the memory it lies in. */
typedef struct tensor {
    const kiln_tensor *about;
    int64_t shape[HARNESS_MAX_RANK];
    guarded memory;
    DLTensor view;
} tensor;

/* Everything one vector needs. */
typedef struct workload {
    tensor *inputs;   /* (inputs of the model) */
    tensor *outputs;  /* (outputs of the model) */
    DLTensor *input;  /* the views alone, as kiln_run takes them */
    DLTensor *output; /* likewise */
    guarded arena;
    kiln_plan_result plan;
} workload;

/* Print to stderr and leave with status 3: the program could not do its work. */
_Noreturn void harness_stop(const char *what, const char *name);

/* Memory of exactly `bytes` at a multiple of `align` plus `skew`, guarded, filled with `fill`. */
guarded guarded_make(size_t bytes, size_t align, size_t skew, unsigned char fill);
void guarded_fill(const guarded *g, unsigned char fill);
int guarded_holds(const guarded *g, unsigned char fill); /* 1: every byte is `fill` */
int guarded_intact(const guarded *g);                    /* 1: nothing around it was written */
void guarded_free(guarded *g);

/* `count` elements of zero bytes, also for a count of 0. */
void *array_of(size_t count, size_t size);
void array_free(void *memory);

FILE *vectors_open(const char *path, uint32_t tensors, uint32_t *vectors);
FILE *vectors_create(const char *path, uint32_t vectors, uint32_t tensors);
void vectors_close(FILE *file);
void vectors_put(FILE *file, const tensor *t);

/* Read one tensor of a vector file into memory of its own, freed with guarded_free. */
void tensor_read(tensor *t, const kiln_tensor *about, FILE *file);

/* Read the next vector's inputs; make outputs and arena as the plan for these inputs says.
 * Inputs and outputs get no more than their element's alignment: that is all the API asks for. */
void workload_read(workload *w, FILE *file);
void workload_fill(const workload *w, unsigned char fill); /* outputs and arena */
int workload_intact(const workload *w);
void workload_free(workload *w);

/* The params image: the linked one's bytes, or `path` where the model keeps it in a file.
 * Aligned for Kiln, with `KILN_PARAMS_ALIGN` spare bytes after it; null: the model has none. */
unsigned char *params_copy(const char *path);

/* Null when nothing but the inputs has been written since workload_fill(w, fill); what has else. */
const char *workload_written(const workload *w, unsigned char fill);

/* A configuration for this workload that is right in every part. */
kiln_config workload_config(const workload *w, const unsigned char *image);

/* Try wrong arguments one at a time on a workload that is otherwise right; print a `check` line
 * each. `image` is a params image (null: the model has none) that may be written to and is put
 * back. */
void check_errors(const workload *w, unsigned char *image);

/* Of these only what concerns the arena: the bucket's own bytes must do, one fewer must not. */
void check_arena(const workload *w, unsigned char *image);

/* Run with the shapes of each vector in the file `path`; print a `refused` line each. */
void check_refused(const workload *w, unsigned char *image, const char *path);

/* Null when kiln_plan_dims and the typed function, given as KILN_TYPED_PLAN(dims, result, detail),
 * say the same of this run as kiln_plan; what differs else. */
const char *plan_fault(const workload *w);

#endif
