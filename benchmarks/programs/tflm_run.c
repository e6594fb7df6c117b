/* tflm_run.c: runs the model of tflm_model.cc on the vectors of inputs.bin, writes the contents of
 * its outputs to outputs.bin, and prints the instructions of each run and the bytes of the arena.
 *
 * Both files are as programs/harness.h of Kiln's test programs describes the inputs; outputs.bin
 * has the bytes of the outputs alone. The argument is the number of vectors after which variables
 * begin again.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine.h"
#include "tflm_model.h"

#define ARENA_SLACK 64u

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

/* Read one input: its rank, its bytes, its shape, which must be the model's, and its content. */
static int read_input(FILE *file, unsigned index) {
    uint32_t ranks[2];
    uint64_t bytes;
    int64_t size;
    if (fread(ranks, sizeof ranks, 1, file) != 1 || fread(&bytes, sizeof bytes, 1, file) != 1)
        return 1;
    for (uint32_t axis = 0; axis < ranks[0]; axis++)
        if (fread(&size, sizeof size, 1, file) != 1)
            return 1;
    if (bytes != tflm_bytes(0, index))
        return 1;
    return fread(tflm_data(0, index), 1, (size_t)bytes, file) != bytes;
}

int main(int argc, char **argv) {
    const size_t arena_bytes = (size_t)(kiln_heap_end - kiln_heap_start) - ARENA_SLACK;
    unsigned char *arena = malloc(arena_bytes);
    const unsigned long runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t head[4]; /* magic, in two words; vectors; tensors */
    if (arena == NULL || tflm_open(arena, arena_bytes) != 0)
        return fail("TFLM cannot open the model");
    printf("arena\t%lu\n", tflm_arena_bytes());
    FILE *in = fopen("inputs.bin", "rb"), *out = fopen("outputs.bin", "wb");
    if (in == NULL || out == NULL || fread(head, sizeof head, 1, in) != 1)
        return fail("inputs.bin or outputs.bin cannot be opened");
    if (head[3] != tflm_tensors(0))
        return fail("another number of inputs");
    for (uint32_t vector = 0; vector < head[2]; vector++) {
        for (unsigned i = 0; i < head[3]; i++)
            if (read_input(in, i))
                return fail("an input of another size");
        if (runs > 1 && vector > 0 && vector % runs == 0 && tflm_reset() != 0)
            return fail("variables cannot begin again");
        const uint64_t began = machine_instructions();
        if (tflm_run() != 0)
            return fail("Invoke failed");
        const uint64_t spent = machine_instructions() - began;
        printf("run\t%llu\n", (unsigned long long)spent);
        for (unsigned i = 0; i < tflm_tensors(1); i++)
            if (fwrite(tflm_data(1, i), 1, tflm_bytes(1, i), out) != tflm_bytes(1, i))
                return fail("an output cannot be written");
    }
    return fclose(out) != 0;
}
