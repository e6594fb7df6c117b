/* vectors.c: the tiny model on a Cortex-M without an operating system, in the protocol of
 * device/programs/harness.h: reads inputs.bin, writes outputs.bin, both by semihosting.
 */
#include <stddef.h>
#include <stdint.h>

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

static int call(int number, const void *block) {
    register int r0 __asm__("r0") = number;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static int open(const char *name, uint32_t length, uint32_t mode) {
    const uint32_t block[3] = {(uint32_t)name, mode, length};
    return call(1, block);
}

static uint32_t move(int number, int file, void *data, uint32_t bytes) {
    const uint32_t block[3] = {(uint32_t)file, (uint32_t)data, bytes};
    return bytes - (uint32_t)call(number, block);
}

__attribute__((noinline, used)) void kiln_exit(int status) {
    for (;;)
        __asm__ volatile("" : : "r"(status));
}

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
    if (from < 0 || to < 0 || move(6, from, &head, sizeof head) != sizeof head)
        kiln_exit(2);
    if (kiln_open(&session, &tiny, &config) != KILN_OK)
        kiln_exit(3);
    move(5, to, &head, sizeof head);
    for (uint32_t v = 0; v < head.vectors; v++) {
        if (move(6, from, &in, sizeof in) != sizeof in)
            kiln_exit(4);
        out = in;
        if (tiny_run(&session, in.elements, out.elements) != KILN_OK)
            kiln_exit(5);
        move(5, to, &out, sizeof out);
    }
    const uint32_t file = (uint32_t)to;
    kiln_exit(call(2, &file) == 0 ? 0 : 6);
}

static void fault(void) {
    kiln_exit(99);
}

extern uint32_t stack_top;
__attribute__((section(".vectors"), used)) const void *vectors[16] = {
    &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault};
