/* machine_riscv32.c: first code of 32-bit RISC-V cores in machine mode, and a count of
 * instructions.
 *
 * The count is the core's own, minstret; under an emulator it is exact where time passes by
 * instructions.
 */
#include "machine.h"

__attribute__((used)) static void report(void) {
    uintptr_t address, cause;
    __asm__ volatile("csrr %0, mepc\ncsrr %1, mcause" : "=r"(address), "=r"(cause));
    machine_fault("exception", address, cause);
}

/* A second exception, such as that of a stack outside of the memory, would be followed by others
 * for ever: it ends the program without a word, by semihosting (SYS_EXIT,
 * ADP_Stopped_RunTimeErrorUnknown).
 */
__attribute__((naked, used, aligned(16))) static void trap(void) {
    __asm__ volatile(".option push\n.option norvc\n"
                     "csrrwi t0, mscratch, 1\n"
                     "bnez t0, 1f\n"
                     "j %0\n"
                     "1: li a0, 0x18\n"
                     "li a1, 0x20023\n"
                     ".balign 16\n"
                     "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n"
                     ".option pop"
                     :
                     : "i"(report));
}

__attribute__((naked, section(".kiln.vectors"), used)) void kiln_at_reset(void) {
    __asm__ volatile("la sp, kiln_stack_top\n"
                     "la t0, %0\n"
                     "csrw mtvec, t0\n"
                     "csrw mscratch, zero\n"
#if defined __riscv_flen
                     "li t0, 0x2000\n" /* mstatus.FS: initial */
                     "csrs mstatus, t0\n"
#endif
                     "call machine_main"
                     :
                     : "i"(trap));
}

void machine_count_start(void) {
}

uint64_t machine_instructions(void) {
    uint32_t high, low, again;
    do {
        __asm__ volatile("csrr %0, minstreth\ncsrr %1, minstret\ncsrr %2, minstreth"
                         : "=r"(high), "=r"(low), "=r"(again));
    } while (high != again);
    return (uint64_t)high << 32 | low;
}
