/* bandwidth.c: how fast one core reads memory, and reads one block while it writes another.
 *
 * For working sets of 8 KiB to 128 MiB it prints a line: bytes, GB/s read, GB/s read and written
 * together, each the best of some rounds. -DBITS=256 or 512 chooses the vector. What a store
 * fetches before it writes is not counted, as it is not in the bytes of a step.
 */
#define _POSIX_C_SOURCE 200112L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAST   ((size_t)8 << 10)
#define MOST    ((size_t)128 << 20)
#define AT_ONCE ((size_t)4 << 20) /* bytes between two looks at the clock, which costs time too */
#define ROUNDS  8
#define TIME    0.004 /* seconds that a round takes at least */

typedef float vector __attribute__((vector_size(BITS / 8)));

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* not what others of this machine take */
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static vector read_all(const vector *from, size_t count) {
    vector sums[8];
    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i < count; i += 8)
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++)
            sums[k] += from[i + k];
    for (size_t k = 1; k < 8; k++)
        sums[0] += sums[k];
    return sums[0];
}

/* A product, so that the compiler makes no call of memcpy, which would go past the caches. */
static void scale_all(const vector *from, vector *to, size_t count, vector by) {
    for (size_t i = 0; i < count; i += 8)
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++)
            to[i + k] = from[i + k] * by;
}

int main(void) {
    vector *memory, by, kept;
    if (posix_memalign((void **)&memory, 4096, MOST) != 0)
        return 1;
    memset(memory, 0, MOST);
    memset(&kept, 0, sizeof kept);
    for (int i = 0; i < BITS / 32; i++)
        by[i] = 0.5f;
    for (size_t bytes = LEAST; bytes <= MOST; bytes *= 2) {
        const size_t count = bytes / sizeof(vector);
        double best[2] = {0.0, 0.0};
        for (int round = 0; round < 2 * ROUNDS; round++) {
            const int kind = round % 2;
            long passes = 0;
            const double before = seconds();
            double after = before;
            while (after - before < TIME) {
                for (size_t done = 0; done < AT_ONCE; done += bytes, passes++) {
                    if (kind == 0)
                        kept += read_all(memory, count);
                    else
                        scale_all(memory, memory + count / 2, count / 2, by);
                    __asm__ volatile("" : : "r"(memory) : "memory");
                }
                after = seconds();
            }
            const double rate = 1e-9 * (double)bytes * (double)passes / (after - before);
            best[kind] = rate > best[kind] ? rate : best[kind];
        }
        printf("%zu %.2f %.2f\n", bytes, best[0], best[1]);
    }
    fprintf(stderr, "%g\n", (double)kept[0]); /* so that the work is not dropped */
    free(memory);
    return 0;
}
