/* variants.c: run the first vector with one variant of the model, and time kiln_open.
 *
 *     variants [variant NAME] INPUTS PARAMS RUNS OPENS
 *
 * Prints, times in nanoseconds, the least of each kind: `run TIME` for RUNS runs, and `open TIME`
 * for OPENS calls of kiln_open, which ask the processor and choose the variant. A run and a call
 * before the first one are not timed.
 */
#include "harness.h"

#include <stdlib.h>

static kiln_session session;

static uint64_t least(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

int main(int argc, char **argv) {
    uint32_t vectors;
    harness_arguments(&argc, &argv);
    if (argc != 5)
        harness_stop("variants [variant NAME] INPUTS PARAMS RUNS OPENS", "usage");
    workload w;
    FILE *in = vectors_open(argv[1], harness_model()->inputs_count, &vectors);
    workload_read(&w, in);
    fclose(in);
    unsigned char *params = params_loaded(argv[2]);
    kiln_config config = workload_config(&w, params);
    harness_must(&session, kiln_open(&session, harness_model(), &config));
    harness_must(&session, kiln_run(&session, w.input, w.output));
    uint64_t run = UINT64_MAX, opened = UINT64_MAX;
    for (int left = atoi(argv[3]); left > 0; left--) {
        const uint64_t began = harness_now();
        harness_must(&session, kiln_run(&session, w.input, w.output));
        run = least(run, harness_now() - began);
    }
    kiln_close(&session);
    config.variant = NULL; /* kiln_open chooses */
    for (int left = atoi(argv[4]); left > 0; left--) {
        const uint64_t began = harness_now();
        harness_must(&session, kiln_open(&session, harness_model(), &config));
        opened = least(opened, harness_now() - began);
        kiln_close(&session);
    }
    printf("run\t%llu\nopen\t%llu\n", (unsigned long long)run, (unsigned long long)opened);
    return 0;
}
