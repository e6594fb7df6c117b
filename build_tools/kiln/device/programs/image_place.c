/* image_place.c: memory of a process that can be executed, once it has been written. */
#define _DEFAULT_SOURCE

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align);

const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align) {
    unsigned char *block =
        mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        harness_stop("out of memory", "mmap");
    unsigned char *memory = block + (align - (uintptr_t)block % align) % align;
    memcpy(memory, image, bytes);
    __builtin___clear_cache((char *)memory, (char *)memory + bytes);
    if (mprotect(block, bytes + align, PROT_READ | PROT_EXEC) != 0)
        harness_stop("the system runs no code that was written", "mprotect");
    return memory;
}
