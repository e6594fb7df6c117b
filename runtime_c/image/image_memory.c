/* image_memory.c: memcpy, memmove and memset of an image, which calls nothing outside of it.
 * Compiled with -fno-builtin, so that no loop here becomes a call of itself. */
#include <stddef.h>
#include <stdint.h>

#define LOCAL __attribute__((visibility("hidden"), used))

LOCAL void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
LOCAL void *memmove(void *to, const void *from, size_t bytes);
LOCAL void *memset(void *to, int value, size_t bytes);

/* A word of memory of any type. */
typedef uintptr_t __attribute__((may_alias)) word;

static int aligned(uintptr_t address) {
    return address % sizeof(word) == 0;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    if (aligned((uintptr_t)to | (uintptr_t)from))
        for (; bytes >= sizeof(word);
             bytes -= sizeof(word), out += sizeof(word), in += sizeof(word))
            *(word *)(void *)out = *(const word *)(const void *)in;
    while (bytes-- > 0)
        *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    if ((uintptr_t)to - (uintptr_t)from >= bytes)
        return memcpy(to, from, bytes);
    while (bytes-- > 0)
        out[bytes] = in[bytes];
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *out = to;
    const word filled = (word)-1 / 255u * (unsigned char)value;
    for (; bytes > 0 && !aligned((uintptr_t)out); bytes--)
        *out++ = (unsigned char)value;
    for (; bytes >= sizeof(word); bytes -= sizeof(word), out += sizeof(word))
        *(word *)(void *)out = filled;
    while (bytes-- > 0)
        *out++ = (unsigned char)value;
    return to;
}
