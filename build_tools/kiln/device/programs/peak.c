/* peak.c: measures the peak rate of one core in float32 operations, with multiply-adds only.
 *
 * Prints GFLOP/s, the best of many short measurements. BITS is the width of a vector register and
 * REGISTERS how many there are; where they allow it, 24 independent accumulators cover a latency of
 * 4 cycles on two units threefold, else 12 are used. Multiply and add count as two operations,
 * whether or not the compiler fuses them into one instruction for the processor.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>

#define CHAINS (REGISTERS > 28 ? 24 : 12)
#define LANES  (BITS / 32)
#define ROUNDS 100
#define LOOPS  20000

typedef float vector __attribute__((vector_size(BITS / 8)));

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Add to each of `sums` its product with `scale`, LOOPS times. A function of its own, in which
 * nothing is called: accumulators that live through a call are kept in memory. An accumulator is
 * both factor and summand, so that an instruction that overwrites the summand needs no copy of it.
 */
static __attribute__((noinline)) void multiply_add(vector sums[CHAINS], const vector *scale) {
    const vector factor = *scale;
    vector chains[CHAINS];
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; i++)
        chains[i] = sums[i];
    for (int loop = 0; loop < LOOPS; loop++) {
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++)
            chains[i] += chains[i] * factor;
    }
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; i++)
        sums[i] = chains[i];
}

int main(int count, char **words) {
    (void)words;
    vector scale, sums[CHAINS];
    for (int i = 0; i < LANES; i++) {
        scale[i] = (float)(count - 1); /* 0, which the compiler does not know */
        for (int chain = 0; chain < CHAINS; chain++)
            sums[chain][i] = (float)(chain + 1);
    }
    double best = 0.0;
    for (int round = 0; round < ROUNDS; round++) {
        const double before = seconds();
        multiply_add(sums, &scale);
        const double rate = 2e-9 * LANES * CHAINS * LOOPS / (seconds() - before);
        best = rate > best ? rate : best;
    }
    for (int i = 1; i < CHAINS; i++)
        sums[0] += sums[i];
    fprintf(stderr, "%g\n", (double)sums[0][0]); /* so that the work is not dropped */
    printf("%.1f\n", best);
    return 0;
}
