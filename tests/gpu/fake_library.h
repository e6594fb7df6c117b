/* fake_library.h: what the stand-ins for NVIDIA's libraries share. They compute on this processor,
 * when the stand-in of the driver comes to their place in the stream.
 *
 *     KILN_FAKE_LOG           file to which each call is appended: name, result
 *     KILN_FAKE_LIBRARY_FAIL  NAME:n:result: the n-th call of that function, counted from 0, does
 * nothing and gives that result
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

/* Whether this call is the one that is to fail; *seen: how often its function was called before. */
static int told_to_fail(const char *name, int *seen, int *result) {
    const char *text = getenv("KILN_FAKE_LIBRARY_FAIL");
    char which[80];
    int at, gives;
    const int mine = (*seen)++;
    if (text == NULL || sscanf(text, "%79[^:]:%d:%d", which, &at, &gives) != 3)
        return 0;
    if (strcmp(which, name) != 0 || at != mine)
        return 0;
    *result = gives;
    return 1;
}

#define CALL(...)                                                                                  \
    static int seen;                                                                               \
    int result = 0;                                                                                \
    if (!told_to_fail(__func__, &seen, &result))                                                   \
        __VA_ARGS__;                                                                               \
    say(__func__, result);                                                                         \
    return result

/* Rounded to 10 bits of mantissa; to nearest here, the libraries do not say how they do it. */
static inline float to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000u) & 0xffffe000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Work for the stream, with a copy of what it needs; graphs keep it, so it is never freed. As in
 * the real libraries, the first work of a process cannot be captured: it would load code. */
static int put(void *stream, void (*work)(void *data), const void *data, size_t bytes) {
    static int loaded;
    int (*launch)(void *, void (*)(void *), void *), (*is_capturing)(void *, int *);
    int capturing = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *address = driver == NULL ? NULL : dlsym(driver, "cuLaunchHostFunc");
    void *question = driver == NULL ? NULL : dlsym(driver, "cuStreamIsCapturing");
    void *copy = malloc(bytes);
    if (address == NULL || question == NULL || copy == NULL)
        abort();
    memcpy(copy, data, bytes);
    memcpy(&launch, &address, sizeof launch);
    memcpy(&is_capturing, &question, sizeof is_capturing);
    (void)is_capturing(stream, &capturing);
    if (capturing && !loaded)
        return 900; /* cudaErrorStreamCaptureUnsupported */
    loaded = 1;
    return launch(stream, work, copy);
}

/* The bits of the bfloat16 nearest to x, ties to even. Written out, because the compiler's own
 * conversion calls a function that zig's library lacks. */
static inline uint16_t bfloat16_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
