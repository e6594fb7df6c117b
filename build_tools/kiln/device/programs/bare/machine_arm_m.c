/* machine_arm_m.c: vectors and first code of Arm's M-profile cores, and a count of instructions.
 *
 * The count is that of SysTick, a timer of every such core, in the unit of instructions: under an
 * emulator that lets time pass by instructions, a loop of known length gives the unit.
 */
#include <stddef.h>

#include "machine.h"

#define CFSR       (*(volatile uint32_t *)0xE000ED28u)
#define CPACR      (*(volatile uint32_t *)0xE000ED88u)
#define SYST_CSR   (*(volatile uint32_t *)0xE000E010u)
#define SYST_RVR   (*(volatile uint32_t *)0xE000E014u)
#define SYST_CVR   (*(volatile uint32_t *)0xE000E018u)
#define RELOAD     0xFFFFFFu
#define CALIBRATED (1u << 20) /* rounds of a loop of two instructions */
#define FRACTION   256u

static volatile uint32_t wraps;
static uint32_t unit = FRACTION; /* instructions per tick, times FRACTION */

/* The timer counts from RELOAD down to 0, where its interrupt comes: 0 is the first tick of a turn.
 */
static uint64_t ticks(void) {
    uint32_t before, left;
    do {
        before = wraps;
        left = SYST_CVR;
    } while (before != wraps);
    return (uint64_t)before * (RELOAD + 1u) + (left == 0 ? 0 : RELOAD + 1u - left);
}

static void on_tick(void) {
    wraps++;
}

void machine_count_start(void) {
    uint32_t rounds = CALIBRATED;
    SYST_RVR = RELOAD;
    SYST_CVR = 0;
    SYST_CSR = 7; /* the core's clock, with an interrupt at 0 */
    const uint32_t began = (uint32_t)ticks();
    __asm__ volatile(".syntax unified\n1: subs %0, %0, #1\nbne 1b" : "+l"(rounds) : : "cc");
    const uint32_t spent = (uint32_t)ticks() - began;
    if (spent > 0)
        unit = (2u * CALIBRATED * FRACTION + spent / 2u) / spent;
}

uint64_t machine_instructions(void) {
    return ticks() * unit / FRACTION;
}

/* Called with the stack pointer of the exception frame, whose seventh word is the address. */
__attribute__((used)) static void report(const uint32_t *frame) {
    machine_fault("exception", frame[6], CFSR);
}

__attribute__((naked)) static void fault(void) {
    __asm__ volatile("mov r0, sp\nbl report");
}

void kiln_at_reset(void);

__attribute__((used)) void kiln_at_reset(void) {
#if __ARM_ARCH > 6
    CPACR |=
        0xFu << 20; /* access to the floating-point and vector registers, if the core has them */
    __asm__ volatile("dsb\nisb");
#endif
    machine_main();
}

__attribute__((section(".kiln.vectors"), used)) static const void *const vectors[16] = {
    kiln_stack_top,
    (const void *)kiln_at_reset,
    (const void *)fault,
    (const void *)fault,
    (const void *)fault,
    (const void *)fault,
    (const void *)fault,
    (const void *)fault,
    NULL,
    NULL,
    NULL,
    (const void *)fault,
    (const void *)fault,
    NULL,
    (const void *)fault,
    (const void *)on_tick};
