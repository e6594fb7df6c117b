/* tflm_libc.c: functions of the C library that TensorFlow Lite Micro calls and neither zig's
 * compiler library nor musl, as zig ships it, has. Start-up code may have its own strcmp. */
#include <math.h>
#include <stdint.h>
#include <string.h>

int strncmp(const char *one, const char *other, size_t most) {
    for (; most > 0 && *one != '\0' && *one == *other; most--) {
        one++;
        other++;
    }
    return most > 0 ? (unsigned char)*one - (unsigned char)*other : 0;
}

__attribute__((weak)) int strcmp(const char *one, const char *other) {
    return strncmp(one, other, SIZE_MAX);
}

double frexp(double value, int *exponent) {
    union {
        double value;
        uint64_t bits;
    } is = {value};
    const int stored = (int)(is.bits >> 52 & 0x7FF);
    *exponent = 0;
    if (value == 0 || stored == 0x7FF)
        return value;
    if (stored == 0) { /* subnormal */
        value = frexp(value * 0x1p64, exponent);
        *exponent -= 64;
        return value;
    }
    *exponent = stored - 1022;
    is.bits = (is.bits & 0x800FFFFFFFFFFFFFu) | 0x3FE0000000000000u;
    return is.value;
}

float tanhf(float value) {
    const float minus_one = expm1f(-2 * fabsf(value)); /* exp(-2|x|) - 1 */
    const float positive = -minus_one / (2 + minus_one);
    return signbit(value) ? -positive : positive;
}
