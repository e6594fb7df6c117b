/* stdio.h: as far as the programs that test a bundle use it. Files are the debugger's or
 * emulator's. */
#ifndef KILN_BARE_STDIO_H
#define KILN_BARE_STDIO_H

#include <stddef.h>

typedef struct bare_file FILE;
extern FILE *const stdout, *const stderr;

/* Modes: "rb" and "wb". */
FILE *fopen(const char *path, const char *mode);
int fclose(FILE *file);
size_t fread(void *to, size_t size, size_t count, FILE *file);
size_t fwrite(const void *from, size_t size, size_t count, FILE *file);

/* Conversions: %s %c %d %u %x %%, with l, ll and z; no widths. */
int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fprintf(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
