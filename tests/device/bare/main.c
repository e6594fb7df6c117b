/* main.c: a program for a Cortex-M without an operating system, whose files are semihosting's.
 *
 * Reads inputs.bin, writes outputs.bin with every byte doubled, prints a line, and ends with the
 * number of bytes as its status. MODE 1: it touches memory that is not there; 2: it never
 * ends; 3: it asks for a file that it was not given.
 */
#include "semihosting.h"

#ifndef MODE
#define MODE 0
#endif

static unsigned char data[5000];

void reset(void) {
    int in = open("inputs.bin", 10, 1), out = open("outputs.bin", 11, 5), tt = open(":tt", 3, 4);
    uint32_t bytes = move(SYS_READ, in, data, sizeof data);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(data[i] * 2u);
    move(SYS_WRITE, out, data, bytes);
    move(SYS_WRITE, tt, (void *)"doubled\n", 8);
    if (MODE == 1)
        *(volatile uint32_t *)0xF0000000u = 1;
    while (MODE == 2)
        ;
    if (MODE == 3)
        kiln_exit(open("/etc/passwd", 11, 0) == -1 ? 44 : 1);
    kiln_exit((int)(bytes & 0xFFu));
}

static void fault(void) {
    kiln_exit(99);
}

extern uint32_t stack_top;
__attribute__((section(".vectors"), used)) const void *vectors[16] = {
    &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault};
