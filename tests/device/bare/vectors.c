/* vectors.c: the tiny model on a Cortex-M without an operating system, in the protocol of
 * device/programs/harness.h: reads inputs.bin, writes outputs.bin, both by semihosting.
 */
#include <stddef.h>

#include "semihosting.h"
#include "tiny.h"

/* What the compiler calls: to take it from its library would mean to build that first. */
void *memcpy(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        ((volatile unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        ((volatile unsigned char *)to)[i] = (unsigned char)value;
    return to;
}

static void *clear(void *to, size_t bytes) {
    return memset(to, 0, bytes);
}

void *__aeabi_memcpy(void *, const void *, size_t) __attribute__((alias("memcpy")));
void *__aeabi_memcpy4(void *, const void *, size_t) __attribute__((alias("memcpy")));
void *__aeabi_memcpy8(void *, const void *, size_t) __attribute__((alias("memcpy")));
void *__aeabi_memclr(void *, size_t) __attribute__((alias("clear")));
void *__aeabi_memclr4(void *, size_t) __attribute__((alias("clear")));
void *__aeabi_memclr8(void *, size_t) __attribute__((alias("clear")));

static _Alignas(TINY_ARENA_ALIGN) unsigned char arena[TINY_ARENA_BYTES];
static kiln_session session;
static struct {
    unsigned char magic[8];
    uint32_t vectors, tensors;
} head;
static struct {
    uint32_t rank, zero;
    uint64_t bytes;
    int64_t shape[2];
    float elements[6];
} in, out;

void reset(void) {
    int from = open("inputs.bin", 10, 1), to = open("outputs.bin", 11, 5);
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: the floating-point unit on */
    __asm__ volatile("dsb\n isb");
    if (from < 0 || to < 0 || move(SYS_READ, from, &head, sizeof head) != sizeof head)
        kiln_exit(2);
    if (kiln_open(&session, &tiny, &config) != KILN_OK)
        kiln_exit(3);
    move(SYS_WRITE, to, &head, sizeof head);
    for (uint32_t v = 0; v < head.vectors; v++) {
        if (move(SYS_READ, from, &in, sizeof in) != sizeof in)
            kiln_exit(4);
        out = in;
        if (tiny_run(&session, in.elements, out.elements) != KILN_OK)
            kiln_exit(5);
        move(SYS_WRITE, to, &out, sizeof out);
    }
    const uint32_t file = (uint32_t)to;
    kiln_exit(call(SYS_CLOSE, &file) == 0 ? 0 : 6);
}

static void fault(void) {
    kiln_exit(99);
}

extern uint32_t stack_top;
__attribute__((section(".vectors"), used)) const void *vectors[16] = {
    &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault};
