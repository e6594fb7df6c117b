/* string.h */
#ifndef KILN_ANDROID_STRING_H
#define KILN_ANDROID_STRING_H

#include <stddef.h>

void *memchr(const void *memory, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *memory, int byte, size_t bytes);
char *strcat(char *restrict to, const char *restrict from);
char *strchr(const char *text, int byte);
int strcmp(const char *a, const char *b);
char *strcpy(char *restrict to, const char *restrict from);
char *strerror(int number);
size_t strlen(const char *text);
char *strncat(char *restrict to, const char *restrict from, size_t bytes);
int strncmp(const char *a, const char *b, size_t bytes);
char *strncpy(char *restrict to, const char *restrict from, size_t bytes);
char *strrchr(const char *text, int byte);
char *strstr(const char *text, const char *part);

#endif
