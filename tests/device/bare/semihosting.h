/* semihosting.h: requests of a program for a Cortex-M to its debugger or emulator, and its end. Not
 * the header of Kiln's own programs, which these tests would not find to be wrong.
 *
 * Source: Arm, "Semihosting for AArch32 and AArch64".
 */
#ifndef TEST_SEMIHOSTING_H
#define TEST_SEMIHOSTING_H

#include <stdint.h>

enum {
    SYS_OPEN = 1,
    SYS_CLOSE = 2,
    SYS_WRITE = 5,
    SYS_READ = 6
};

static inline int call(int request, const void *block) {
    register int r0 __asm__("r0") = request;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* The handle of a file, or -1. `length`: of the name; `mode`: 1 reads, 5 writes. */
static inline int open(const char *name, uint32_t length, uint32_t mode) {
    const uint32_t block[3] = {(uint32_t)name, mode, length};
    return call(SYS_OPEN, block);
}

/* Read (SYS_READ) or write (SYS_WRITE) `bytes` bytes of a file; returns how many were moved. */
static inline uint32_t move(int request, int file, void *data, uint32_t bytes) {
    const uint32_t block[3] = {(uint32_t)file, (uint32_t)data, bytes};
    return bytes - (uint32_t)call(request, block);
}

/* The end of the program, at which the debugger has a breakpoint. */
__attribute__((noinline, used)) void kiln_exit(int status) {
    for (;;)
        __asm__ volatile("" : : "r"(status));
}

#endif
