/* stdlib.h: as far as the programs that test a bundle use it. */
#ifndef KILN_BARE_STDLIB_H
#define KILN_BARE_STDLIB_H

#include <stddef.h>

_Noreturn void exit(int status);
void *malloc(size_t bytes);
void *calloc(size_t count, size_t size);
void free(void *memory);
int atoi(const char *text);
unsigned long long strtoull(const char *text, char **end, int base); /* base 10 only */
void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *));

#endif
