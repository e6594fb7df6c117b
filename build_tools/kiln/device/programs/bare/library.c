/* library.c: memory, text and numbers of the C library, as far as the programs that test a bundle
 * use them. Compiled with -ffreestanding, so that no loop here becomes a call of itself.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

#define ALIGN 16u

static int both_aligned(const void *one, const void *other) {
    return (((uintptr_t)one | (uintptr_t)other) & 3u) == 0;
}

/* A word in memory: of any alignment where the core loads and stores such words. */
#if defined __ARM_FEATURE_UNALIGNED
#define MAY_COPY_WORDS(to, from) 1
typedef struct __attribute__((packed, may_alias)) {
    uint32_t value;
} word;
#else
#define MAY_COPY_WORDS(to, from) both_aligned(to, from)
typedef struct __attribute__((may_alias)) {
    uint32_t value;
} word;
#endif

void *memcpy(void *to, const void *from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    if (MAY_COPY_WORDS(to, from)) {
        for (; bytes >= 16; bytes -= 16, out += 16, in += 16) {
            const word *source = (const word *)(const void *)in;
            word *target = (word *)(void *)out;
            target[0] = source[0];
            target[1] = source[1];
            target[2] = source[2];
            target[3] = source[3];
        }
        for (; bytes >= 4; bytes -= 4, out += 4, in += 4)
            *(word *)(void *)out = *(const word *)(const void *)in;
    }
    while (bytes-- > 0)
        *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    if (out <= in || out >= in + bytes)
        return memcpy(to, from, bytes);
    while (bytes-- > 0)
        out[bytes] = in[bytes];
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *out = to;
    const uint32_t word = (unsigned char)value * 0x01010101u;
    for (; bytes > 0 && ((uintptr_t)out & 3u) != 0; bytes--)
        *out++ = (unsigned char)value;
    for (; bytes >= 4; bytes -= 4, out += 4)
        *(uint32_t *)(void *)out = word;
    while (bytes-- > 0)
        *out++ = (unsigned char)value;
    return to;
}

#if defined __arm__
/* What compilers call in their place (Run-time ABI for the Arm architecture, section 4.3.4): a
 * compiler's own library has loops over bytes where it is built for size. */
void __aeabi_memcpy(void *to, const void *from, size_t bytes) {
    (void)memcpy(to, from, bytes);
}
void __aeabi_memmove(void *to, const void *from, size_t bytes) {
    (void)memmove(to, from, bytes);
}
void __aeabi_memset(void *to, size_t bytes, int value) {
    (void)memset(to, value, bytes);
}
void __aeabi_memclr(void *to, size_t bytes) {
    (void)memset(to, 0, bytes);
}
#define ALIAS(name) __attribute__((alias(#name)))
void __aeabi_memcpy4(void *, const void *, size_t) ALIAS(__aeabi_memcpy);
void __aeabi_memcpy8(void *, const void *, size_t) ALIAS(__aeabi_memcpy);
void __aeabi_memmove4(void *, const void *, size_t) ALIAS(__aeabi_memmove);
void __aeabi_memmove8(void *, const void *, size_t) ALIAS(__aeabi_memmove);
void __aeabi_memset4(void *, size_t, int) ALIAS(__aeabi_memset);
void __aeabi_memset8(void *, size_t, int) ALIAS(__aeabi_memset);
void __aeabi_memclr4(void *, size_t) ALIAS(__aeabi_memclr);
void __aeabi_memclr8(void *, size_t) ALIAS(__aeabi_memclr);
#endif

int memcmp(const void *one, const void *other, size_t bytes) {
    const unsigned char *a = one, *b = other;
    if (both_aligned(one, other))
        while (bytes >= 4 &&
               *(const uint32_t *)(const void *)a == *(const uint32_t *)(const void *)b) {
            a += 4;
            b += 4;
            bytes -= 4;
        }
    for (; bytes > 0; bytes--, a++, b++)
        if (*a != *b)
            return *a < *b ? -1 : 1;
    return 0;
}

int strcmp(const char *one, const char *other) {
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return (unsigned char)*one - (unsigned char)*other;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length] != '\0')
        length++;
    return length;
}

/* A block of the heap: this header, then `bytes` bytes; blocks follow one another without gaps. */
typedef struct block {
    _Alignas(ALIGN) size_t bytes;
    size_t taken;
} block;

static block *first, *end;

static void heap_make(void) {
    const uintptr_t from = ((uintptr_t)kiln_heap_start + ALIGN - 1u) & ~(uintptr_t)(ALIGN - 1u);
    const uintptr_t to = (uintptr_t)kiln_heap_end & ~(uintptr_t)(ALIGN - 1u);
    first = (block *)from;
    end = (block *)to;
    if (to > from + sizeof(block)) {
        first->bytes = to - from - sizeof(block);
        first->taken = 0;
    } else {
        first = end;
    }
}

static block *after(block *b) {
    return (block *)((uintptr_t)(b + 1) + b->bytes);
}

void *malloc(size_t bytes) {
    const size_t rounded = (bytes + ALIGN - 1u) & ~(size_t)(ALIGN - 1u);
    if (first == NULL)
        heap_make();
    if (rounded < bytes)
        return NULL;
    for (block *b = first; b < end; b = after(b)) {
        if (b->taken)
            continue;
        while (after(b) < end && !after(b)->taken) /* join free neighbours */
            b->bytes += sizeof(block) + after(b)->bytes;
        if (b->bytes < rounded)
            continue;
        if (b->bytes >= rounded + sizeof(block)) {
            const size_t rest = b->bytes - rounded - sizeof(block);
            b->bytes = rounded;
            after(b)->bytes = rest;
            after(b)->taken = 0;
        }
        b->taken = 1;
        return b + 1;
    }
    return NULL;
}

size_t machine_heap_bytes(void) {
    return (size_t)(kiln_heap_end - kiln_heap_start);
}

size_t machine_heap_free(void) {
    size_t most = 0, joined = 0;
    if (first == NULL)
        heap_make();
    for (block *b = first; b < end; b = after(b)) {
        joined = b->taken ? 0 : joined + b->bytes + (joined > 0 ? sizeof(block) : 0);
        most = joined > most ? joined : most;
    }
    return most;
}

void *calloc(size_t count, size_t size) {
    if (size > 0 && count > SIZE_MAX / size)
        return NULL;
    void *memory = malloc(count * size);
    if (memory != NULL)
        memset(memory, 0, count * size);
    return memory;
}

void free(void *memory) {
    if (memory != NULL)
        ((block *)memory - 1)->taken = 0;
}

unsigned long long strtoull(const char *text, char **last, int base) {
    unsigned long long value = 0;
    (void)base;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10u + (unsigned)(*text - '0');
    if (last != NULL)
        *last = (char *)(uintptr_t)text;
    return value;
}

int atoi(const char *text) {
    return (int)strtoull(text, NULL, 10);
}

/* Insertion sort: the arrays are short. */
void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *)) {
    unsigned char *bytes = base;
    for (size_t i = 1; i < count; i++)
        for (unsigned char *at = bytes + i * size; at > bytes && compare(at - size, at) > 0;
             at -= size)
            for (size_t j = 0; j < size; j++) {
                const unsigned char kept = at[j];
                at[j] = at[j - size];
                at[j - size] = kept;
            }
}

static void put_number(FILE *file, unsigned long long value, unsigned base) {
    char digits[24];
    size_t at = sizeof digits;
    do {
        digits[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value > 0);
    fwrite(digits + at, 1, sizeof digits - at, file);
}

static void put_signed(FILE *file, long long value) {
    if (value < 0)
        fwrite("-", 1, 1, file);
    put_number(file, value < 0 ? 0u - (unsigned long long)value : (unsigned long long)value, 10);
}

static void print(FILE *file, const char *format, va_list values) {
    for (; *format != '\0'; format++) {
        if (*format != '%') {
            fwrite(format, 1, 1, file);
            continue;
        }
        int wide = 0; /* number of letters l; size_t has the size of long here */
        for (format++; *format == 'l' || *format == 'z'; format++)
            wide += *format == 'l';
        if (*format == 's') {
            const char *text = va_arg(values, const char *);
            fwrite(text, 1, strlen(text), file);
        } else if (*format == 'c') {
            const char letter = (char)va_arg(values, int);
            fwrite(&letter, 1, 1, file);
        } else if (*format == 'd') {
            put_signed(file, wide > 1 ? va_arg(values, long long) : va_arg(values, long));
        } else if (*format == 'u' || *format == 'x') {
            put_number(
                file, wide > 1 ? va_arg(values, unsigned long long) : va_arg(values, unsigned long),
                *format == 'u' ? 10 : 16);
        } else {
            fwrite(format, 1, 1, file);
        }
    }
}

int printf(const char *format, ...) {
    va_list values;
    va_start(values, format);
    print(stdout, format, values);
    va_end(values);
    return 0;
}

int fprintf(FILE *file, const char *format, ...) {
    va_list values;
    va_start(values, format);
    print(file, format, values);
    va_end(values);
    return 0;
}
