/* time_kernels.h: types of the generated table of subjects that time_kernels.c runs. */
#ifndef KILN_TIME_KERNELS_H
#define KILN_TIME_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum kind {
    SCRATCH,
    INPUT,
    OUTPUT,
    WEIGHTS /* the largest parameter: at another address in each run */
};

typedef struct {
    size_t bytes;
    enum kind kind;
} tensor;

/* One implementation of one operator. Consecutive subjects with equal `group` compute the same
 * operator. */
typedef struct {
    const char *name;
    int group;
    /* memory: one pointer for each tensor */
    void (*run)(unsigned char *const *memory);
    const tensor *tensors;
    int count;
    /* One-time preparation by a library, with its parameters in `memory`; 0 on success. NULL: none.
     */
    int (*open)(unsigned char *const *memory);
} subject;

extern const subject SUBJECTS[];
extern const int SUBJECTS_COUNT;

#endif
