/* stdio.h */
#ifndef KILN_ANDROID_STDIO_H
#define KILN_ANDROID_STDIO_H

#include <stdarg.h>
#include <stddef.h>

typedef struct kiln_android_file FILE;
extern FILE *stdin, *stdout, *stderr;
#define stdin  stdin
#define stdout stdout
#define stderr stderr

#define EOF      (-1)
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2

int fclose(FILE *file);
int feof(FILE *file);
int ferror(FILE *file);
int fflush(FILE *file);
int fgetc(FILE *file);
char *fgets(char *restrict text, int bytes, FILE *restrict file);
FILE *fopen(const char *restrict path, const char *restrict mode);
int fprintf(FILE *restrict file, const char *restrict format, ...)
    __attribute__((format(printf, 2, 3)));
int fputc(int byte, FILE *file);
int fputs(const char *restrict text, FILE *restrict file);
size_t fread(void *restrict memory, size_t bytes, size_t count, FILE *restrict file);
int fseek(FILE *file, long offset, int from);
long ftell(FILE *file);
size_t fwrite(const void *restrict memory, size_t bytes, size_t count, FILE *restrict file);
int getc(FILE *file);
void perror(const char *what);
int printf(const char *restrict format, ...) __attribute__((format(printf, 1, 2)));
int putc(int byte, FILE *file);
int putchar(int byte);
int puts(const char *text);
int remove(const char *path);
int rename(const char *from, const char *to);
void rewind(FILE *file);
int setvbuf(FILE *restrict file, char *restrict memory, int mode, size_t bytes);
int snprintf(char *restrict text, size_t bytes, const char *restrict format, ...)
    __attribute__((format(printf, 3, 4)));
int sscanf(const char *restrict text, const char *restrict format, ...)
    __attribute__((format(scanf, 2, 3)));
int vfprintf(FILE *restrict file, const char *restrict format, va_list given);
int vprintf(const char *restrict format, va_list given);
int vsnprintf(char *restrict text, size_t bytes, const char *restrict format, va_list given);

#endif
