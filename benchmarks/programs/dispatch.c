/* dispatch.c: what choosing a bucket costs. Prints nanoseconds of select alone, and of kiln_begin
 * with two inputs, each the least of many rounds over sizes in a scrambled order. */
#include <stdio.h>
#include <time.h>

#include "many.h"

#define SIZES  4096
#define ROUNDS 200

static int64_t sizes[SIZES];
static float x[MANY_INPUT_0_ELEMENTS], y[MANY_OUTPUT_0_ELEMENTS];
static float mask[MANY_INPUT_1_ELEMENTS];
static volatile int32_t sink;

static double now(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    kiln_session session;
    const kiln_config config = {0};
    double least_select = 1e30, least_begin = 1e30;
    uint32_t random = 1;

    if (kiln_open(&session, &many, &config) != KILN_OK)
        return 1;
    for (int i = 0; i < SIZES; i++) {
        random = random * 1664525u + 1013904223u;
        sizes[i] = 1 + (int64_t)(random >> 8) % MANY_DIM_0_MAX;
    }
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < SIZES && many.select != NULL; i++)
            sink = many.select(&sizes[i]);
        const double select = (now() - start) / SIZES;
        start = now();
        for (int i = 0; i < SIZES; i++) {
            const DLTensor inputs[] = {kiln_bind(&many.inputs[0], &sizes[i], x),
                                       kiln_bind(&many.inputs[1], &sizes[i], mask)};
            const DLTensor outputs[] = {kiln_bind(&many.outputs[0], &sizes[i], y)};
            if (kiln_begin(&session, inputs, outputs) != KILN_OK)
                return 2;
        }
        const double begin = (now() - start) / SIZES;
        least_select = select < least_select ? select : least_select;
        least_begin = begin < least_begin ? begin : least_begin;
    }
    (void)printf("%.2f %.2f\n", many.select == NULL ? -1.0 : least_select, least_begin);
    return 0;
}
