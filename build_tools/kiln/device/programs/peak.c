/* peak.c: measures the peak rate of one core in float32 operations, with multiply-adds only.
 *
 * Prints GFLOP/s, the best of many short measurements. BITS is the width of a vector register and
 * REGISTERS how many there are; where they allow it, 24 independent accumulators cover a latency of
 * 4 cycles on two units threefold, else 12 are used. Multiply and add count as two operations,
 * whether or not the compiler fuses them into one instruction for the processor.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CHAINS (REGISTERS > 28 ? 24 : 12)
#define LANES  (BITS / 32)
#define ROUNDS 100
#define LOOPS  20000

#if defined __x86_64__
#define VECTOR_REGISTER "+v"
#else
#define VECTOR_REGISTER "+w" /* AArch64, Arm */
#endif

typedef float vector __attribute__((vector_size(BITS / 8)));

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char **words) {
    (void)words;
    vector scale, shift, chains[CHAINS];
    memset(chains, 0, sizeof chains);
    for (int i = 0; i < LANES; i++) {
        scale[i] = 0.5f * (float)count; /* not known to the compiler */
        shift[i] = 1.0f;
    }
    double best = 0.0;
    for (int round = 0; round < ROUNDS; round++) {
        const double before = seconds();
        for (int loop = 0; loop < LOOPS; loop++) {
#pragma GCC unroll 24
            for (int i = 0; i < CHAINS; i++) {
                chains[i] = chains[i] * scale + shift;
                __asm__ volatile("" : VECTOR_REGISTER(chains[i])); /* keeps the work in the loop */
            }
        }
        const double rate = 2e-9 * LANES * CHAINS * LOOPS / (seconds() - before);
        best = rate > best ? rate : best;
    }
    vector sum = chains[0];
    for (int i = 1; i < CHAINS; i++)
        sum += chains[i];
    fprintf(stderr, "%g\n", (double)sum[0]); /* so that the work is not dropped */
    printf("%.1f\n", best);
    return 0;
}
