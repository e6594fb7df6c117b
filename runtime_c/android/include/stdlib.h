/* stdlib.h */
#ifndef KILN_ANDROID_STDLIB_H
#define KILN_ANDROID_STDLIB_H

#include <stddef.h>

#define EXIT_FAILURE 1
#define EXIT_SUCCESS 0
#define RAND_MAX     0x7fffffff

_Noreturn void abort(void);
int abs(int number);
int atoi(const char *text);
void *bsearch(const void *key, const void *items, size_t count, size_t bytes,
              int (*compare)(const void *, const void *));
void *calloc(size_t count, size_t bytes);
_Noreturn void exit(int status);
void free(void *memory);
char *getenv(const char *name);
long labs(long number);
long long llabs(long long number);
void *malloc(size_t bytes);
int posix_memalign(void **memory, size_t align, size_t bytes);
void qsort(void *items, size_t count, size_t bytes, int (*compare)(const void *, const void *));
int rand(void);
void *realloc(void *memory, size_t bytes);
void srand(unsigned int seed);
double strtod(const char *text, char **end);
float strtof(const char *text, char **end);
long strtol(const char *text, char **end, int base);
long long strtoll(const char *text, char **end, int base);
unsigned long strtoul(const char *text, char **end, int base);
unsigned long long strtoull(const char *text, char **end, int base);

#endif
