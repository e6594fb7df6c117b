/* Runs the model on the bytes of a file and prints its outputs, one number a line. */
#include <stdio.h>

#include "resnet.h"

static _Alignas(RESNET_ARENA_ALIGN) unsigned char arena[RESNET_ARENA_BYTES];
static int8_t input[RESNET_INPUT_0_ELEMENTS], output[RESNET_OUTPUT_0_ELEMENTS];

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || fread(input, 1, sizeof input, file) != sizeof input)
        return 2;
    fclose(file);
    kiln_session session;
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    if (kiln_open(&session, &resnet, &config) != KILN_OK ||
        resnet_run(&session, input, output) != KILN_OK)
        return 1;
    for (size_t i = 0; i < sizeof output; i++)
        printf("%d\n", output[i]);
    return 0;
}
