// The same from C++: the header must be one for both languages.
#include <cstdio>
#include <fstream>

#include "resnet.h"

alignas(RESNET_ARENA_ALIGN) static unsigned char arena[RESNET_ARENA_BYTES];
static int8_t input[RESNET_INPUT_0_ELEMENTS], output[RESNET_OUTPUT_0_ELEMENTS];

int main(int argc, char **argv) {
    std::ifstream file(argc > 1 ? argv[1] : "", std::ios::binary);
    if (!file.read(reinterpret_cast<char *>(input), sizeof input))
        return 2;
    kiln_session session;
    kiln_config config = {};
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    if (kiln_open(&session, &resnet, &config) != KILN_OK ||
        resnet_run(&session, input, output) != KILN_OK)
        return 1;
    for (int value : output)
        std::printf("%d\n", value);
    return 0;
}
