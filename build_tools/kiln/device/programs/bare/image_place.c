/* image_place.c: memory of a machine without an operating system, all of which can be executed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align);

const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align) {
    unsigned char *memory = malloc(bytes + align);
    if (memory == NULL)
        harness_stop("out of memory", "malloc");
    memory += (align - (uintptr_t)memory % align) % align;
    memcpy(memory, image, bytes);
#if defined(__arm__)
    __asm__ volatile("dsb\nisb" : : : "memory");
#elif defined(__riscv)
    __asm__ volatile("fence.i" : : : "memory");
#endif
    return memory;
}
