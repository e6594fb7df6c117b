/* start.c: where a program for Android begins.
 *
 * The kernel and the system's linker enter at _start with the stack pointer at the number of
 * arguments. The C library does the rest: __libc_init calls main and then exit. Its last argument
 * lists functions to call at the end, of which programs in C have none; the linker has called those
 * for the beginning.
 */
#include <stddef.h>

struct at_end {
    void (**functions[3])(void);
    size_t counts[3]; /* read by newer versions */
};

int main(int argc, char **argv, char **environment);
_Noreturn void __libc_init(void *arguments, void (*unused)(void),
                           int (*entry)(int, char **, char **), const struct at_end *functions);

__attribute__((used, visibility("hidden"))) void kiln_android_start(void *arguments) {
    static const struct at_end none;
    __libc_init(arguments, NULL, main, &none);
}

#if defined(__aarch64__)
__asm__(".text\n"
        ".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    b kiln_android_start\n");
#elif defined(__x86_64__)
__asm__(".text\n"
        ".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rsp, %rdi\n"
        "    andq $-16, %rsp\n"
        "    callq kiln_android_start\n"
        "    hlt\n");
#else
#error "no start of programs for this architecture"
#endif
