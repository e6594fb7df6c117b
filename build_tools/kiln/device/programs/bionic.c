/* bionic.c: names of Android's C library that glibc lacks, or has with other meanings.
 *
 * Built for glibc as libc.so, it lets programs and libraries for Android run on Linux: all other
 * names that they use, and the layout of what they pass, are the same in both C libraries.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define BIONIC_PAGESIZE   0x27
#define BIONIC_PROCESSORS 0x61

int __libc_start_main(int (*entry)(int, char **, char **), int argc, char **argv,
                      void (*begin)(void), void (*end)(void), void (*unload)(void), void *stack);

int *__errno(void) {
    return &errno;
}

_Noreturn void __assert2(const char *file, int line, const char *function, const char *condition) {
    (void)fprintf(stderr, "%s:%d: %s: assertion \"%s\" failed\n", file, line, function, condition);
    abort();
}

long sysconf(int name) {
    if (name == BIONIC_PROCESSORS)
        return get_nprocs();
    if (name == BIONIC_PAGESIZE)
        return getpagesize();
    errno = EINVAL;
    return -1;
}

/* `arguments`: the stack at the program's start: the number of arguments, then the arguments. */
_Noreturn void __libc_init(void *arguments, void (*unused)(void),
                           int (*entry)(int, char **, char **), const void *functions) {
    (void)unused;
    (void)functions;
    const int argc = *(const int *)arguments;
    char **argv = (char **)arguments + 1;
    exit(__libc_start_main(entry, argc, argv, NULL, NULL, NULL, arguments));
}
