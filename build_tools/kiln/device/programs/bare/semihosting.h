/* semihosting.h: requests of a program without an operating system to its debugger or emulator.
 *
 * Source: "Semihosting for AArch32 and AArch64", and "RISC-V Semihosting".
 */
#ifndef KILN_SEMIHOSTING_H
#define KILN_SEMIHOSTING_H

#include <stdint.h>

enum {
    SYS_OPEN = 0x01,
    SYS_CLOSE = 0x02,
    SYS_WRITE = 0x05,
    SYS_READ = 0x06,
    SYS_GET_CMDLINE = 0x15,
    SYS_EXIT_EXTENDED = 0x20
};

/* Modes of SYS_OPEN: those of fopen. */
enum {
    OPEN_RB = 1,
    OPEN_WB = 5
};

static inline int32_t semihosting(int32_t number, const void *block) {
#if defined __arm__
    register int32_t r0 __asm__("r0") = number;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
#elif defined __riscv
    register int32_t a0 __asm__("a0") = number;
    register const void *a1 __asm__("a1") = block;
    /* The three instructions must be uncompressed and in one page. */
    __asm__ volatile(".option push\n.option norvc\n.balign 16\n"
                     "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
#else
#error "semihosting: Arm and RISC-V only"
#endif
}

#endif
