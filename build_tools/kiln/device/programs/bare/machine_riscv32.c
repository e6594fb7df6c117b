/* machine_riscv32.c: first code of 32-bit RISC-V cores in machine mode, and a count of
 * instructions.
 *
 * The count is the core's own, minstret; under an emulator it is exact where time passes by
 * instructions.
 */
#include "machine.h"

__attribute__((used, aligned(4))) static void trap(void) {
    uintptr_t address, cause;
    __asm__ volatile("csrr %0, mepc\ncsrr %1, mcause" : "=r"(address), "=r"(cause));
    machine_fault("exception", address, cause);
}

__attribute__((naked, section(".kiln.vectors"), used)) void kiln_at_reset(void) {
    __asm__ volatile("la sp, kiln_stack_top\n"
                     "la t0, %0\n"
                     "csrw mtvec, t0\n"
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
