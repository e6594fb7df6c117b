/* time_kernels.h: what the generated table of kernels tells time_kernels.c. */
#ifndef KILN_TIME_KERNELS_H
#define KILN_TIME_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum kind {
    SCRATCH,
    INPUT,
    OUTPUT,
    WEIGHTS /* the largest parameter: read from another copy at each run */
};

typedef struct {
    size_t bytes;
    enum kind kind;
} tensor;

/* One way of computing one operator. Neighbours in the table with the same `group` compute the
 * same. */
typedef struct {
    const char *name;
    int group;
    /* memory: one pointer for each tensor */
    void (*run)(unsigned char *const *memory);
    const tensor *tensors;
    int count;
    /* What a library makes ready once, of its parameters in `memory`; 0 when it has. NULL: nothing.
     */
    int (*open)(unsigned char *const *memory);
} subject;

extern const subject SUBJECTS[];
extern const int SUBJECTS_COUNT;

#endif
