/* machine.h: what a program without an operating system has of its machine, and the linker script's
 * symbols, whose addresses are the values.
 */
#ifndef KILN_MACHINE_H
#define KILN_MACHINE_H

#include <stddef.h>
#include <stdint.h>

extern unsigned char kiln_data_load[];  /* initial values of variables, in flash */
extern unsigned char kiln_data_start[]; /* variables with initial values, to kiln_data_end */
extern unsigned char kiln_data_end[];
extern unsigned char kiln_bss_start[]; /* variables that begin as 0, to kiln_bss_end */
extern unsigned char kiln_bss_end[];
extern unsigned char kiln_heap_start[]; /* memory for malloc, to kiln_heap_end */
extern unsigned char kiln_heap_end[];
extern unsigned char kiln_stack_limit[]; /* the stack grows from kiln_stack_top down to here */
extern unsigned char kiln_stack_top[];

/* machine_*.c: start to count. */
void machine_count_start(void);

/* machine_*.c: instructions executed since then; on an emulator that does not count them, of no
 * meaning. */
uint64_t machine_instructions(void);

/* library.c: bytes of memory for malloc, and of the largest piece of it that is free. */
size_t machine_heap_bytes(void);
size_t machine_heap_free(void);

/* bare.c: prepare memory, run main, end with its result. The machine's first code calls it. */
_Noreturn void machine_main(void);

/* bare.c: end the program after an exception. `address`: of the instruction that caused it;
 * `cause`: the machine's register with the cause, CFSR or mcause. */
_Noreturn void machine_fault(const char *what, uintptr_t address, uintptr_t cause);

#endif
