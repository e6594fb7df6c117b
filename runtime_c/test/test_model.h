/* test_model.h: a model written by hand, as a generator would write it, for the runtime's tests.
 *
 *     y[b][c] = w[c] * sum over s of mask[b][s] * x[b][s][c]
 *
 * x is float32 (batch, seq, 2), mask int8 (batch, seq), y float32 (batch, 2), w float32 (2) in the
 * params image; batch 1..8, seq 8..64 in multiples of 8. Bucket small holds batch 1..2 and seq
 * 8..16, large every batch and seq 24..64: nothing was built for a batch of 3 to 8 with a seq
 * of 16.
 */
#ifndef KILN_TEST_MODEL_H
#define KILN_TEST_MODEL_H

#include "kiln.h"

#define SUMS_MAX_BATCH   8
#define SUMS_MAX_SEQ     64
#define SUMS_ARENA_SMALL 256
#define SUMS_ARENA_LARGE 4096
#define SUMS_IMAGE_BYTES (128 + 64)

extern const kiln_model sums;

/* Memory and tensors for one run, and a params image: all valid until a test changes something. */
typedef struct workload {
    _Alignas(64) unsigned char arena[SUMS_ARENA_LARGE];
    _Alignas(64) unsigned char image[SUMS_IMAGE_BYTES];
    float x[SUMS_MAX_BATCH * SUMS_MAX_SEQ * 2];
    int8_t mask[SUMS_MAX_BATCH * SUMS_MAX_SEQ];
    float y[SUMS_MAX_BATCH * 2];
    int64_t x_shape[3], mask_shape[2], y_shape[2];
    DLTensor inputs[2], outputs[1];
    kiln_config config;
} workload;

void workload_make(workload *work, int64_t batch, int64_t seq);
/* Whether y is what the formula gives. */
int workload_right(const workload *work);
/* Whether every byte of y and of the arena is as workload_make left it. */
int workload_untouched(const workload *work);
/* The checksum of a params payload, computed bit by bit. */
uint64_t plain_checksum(const unsigned char *data, size_t bytes);
/* Write the checksum of an image's payload into its header. */
void workload_sign(unsigned char *image);

#endif
