/* string.h: as far as the programs that test a bundle use it. */
#ifndef KILN_BARE_STRING_H
#define KILN_BARE_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *one, const void *other, size_t bytes);
int strcmp(const char *one, const char *other);
size_t strlen(const char *text);

#endif
