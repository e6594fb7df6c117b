/* fuzz_main.c: runs a fuzz target on pseudo-random bytes, where there is no libFuzzer.
 * Arguments: how many inputs, and a seed. The same arguments give the same inputs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Marsaglia's xorshift, 64 bits: the state is never 0. */
static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(int count, char **arguments) {
    static uint8_t data[512];
    if (count != 3)
        return 2;
    const long inputs = strtol(arguments[1], NULL, 10);
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    for (long i = 0; i < inputs; i++) {
        const size_t size = (size_t)(draw() % (i % 8 == 0 ? sizeof data : 24));
        for (size_t at = 0; at < size; at++)
            data[at] = (uint8_t)(draw() >> 32);
        (void)LLVMFuzzerTestOneInput(data, size);
    }
    (void)printf("%ld inputs\n", inputs);
    return 0;
}
