/* cpu_x86.c: the features of an x86-64 processor, by CPUID and XGETBV; needs no operating system.
 *
 * A feature with registers of its own counts only when the operating system saves them (XCR0):
 * a processor with AVX2 under a kernel without it ends in an invalid instruction all the same.
 * Bits and leaves: Intel, Software Developer's Manual, volume 2, CPUID; AMD, APM volume 3, appendix
 * E.
 */
#include <cpuid.h>

#include "../core/internal.h"

enum {
    LEAF_1_C,
    LEAF_7_B,
    LEAF_7_C,
    LEAF_7_D,
    LEAF_7_1_A,
    LEAF_7_1_D,
    LEAF_EXTENDED_C,
    AVX10_2, /* bit 0: AVX10 of version 2 or later, a number in leaf 0x24 */
    WORDS
};

/* Bits of XCR0 that must be set. */
enum {
    NONE = 0,
    YMM = 0x6,
    ZMM = 0xe6,
    TILES = 0x60000,
    APX = 0x80000
};

/* By bit of kiln_cpu_features, in the order of build_tools/kiln/config/cpu_features.py. */
static const struct {
    const char *name;
    uint8_t word, bit;
    uint32_t state;
} features[] = {
    {"sse3", LEAF_1_C, 0, NONE},
    {"ssse3", LEAF_1_C, 9, NONE},
    {"fma", LEAF_1_C, 12, YMM},
    {"cx16", LEAF_1_C, 13, NONE},
    {"sse4.1", LEAF_1_C, 19, NONE},
    {"sse4.2", LEAF_1_C, 20, NONE},
    {"movbe", LEAF_1_C, 22, NONE},
    {"popcnt", LEAF_1_C, 23, NONE},
    {"avx", LEAF_1_C, 28, YMM},
    {"f16c", LEAF_1_C, 29, YMM},
    {"bmi", LEAF_7_B, 3, NONE},
    {"avx2", LEAF_7_B, 5, YMM},
    {"bmi2", LEAF_7_B, 8, NONE},
    {"avx512f", LEAF_7_B, 16, ZMM},
    {"avx512dq", LEAF_7_B, 17, ZMM},
    {"avx512ifma", LEAF_7_B, 21, ZMM},
    {"avx512cd", LEAF_7_B, 28, ZMM},
    {"avx512bw", LEAF_7_B, 30, ZMM},
    {"avx512vl", LEAF_7_B, 31, ZMM},
    {"avx512vbmi", LEAF_7_C, 1, ZMM},
    {"avx512vbmi2", LEAF_7_C, 6, ZMM},
    {"gfni", LEAF_7_C, 8, NONE},
    {"avx512vnni", LEAF_7_C, 11, ZMM},
    {"avx512bitalg", LEAF_7_C, 12, ZMM},
    {"avx512vpopcntdq", LEAF_7_C, 14, ZMM},
    {"avx512fp16", LEAF_7_D, 23, ZMM},
    {"avxvnni", LEAF_7_1_A, 4, YMM},
    {"avx512bf16", LEAF_7_1_A, 5, ZMM},
    {"cmpccxadd", LEAF_7_1_A, 7, NONE},
    {"avxifma", LEAF_7_1_A, 23, YMM},
    {"avxvnniint8", LEAF_7_1_D, 4, YMM},
    {"avxneconvert", LEAF_7_1_D, 5, YMM},
    {"avxvnniint16", LEAF_7_1_D, 10, YMM},
    {"apx", LEAF_7_1_D, 21, APX},
    {"sahf", LEAF_EXTENDED_C, 0, NONE},
    {"lzcnt", LEAF_EXTENDED_C, 5, NONE},
    {"sse4a", LEAF_EXTENDED_C, 6, NONE},
    {"xop", LEAF_EXTENDED_C, 11, YMM},
    {"fma4", LEAF_EXTENDED_C, 16, YMM},
    {"tbm", LEAF_EXTENDED_C, 21, NONE},
    {"avx10.2", AVX10_2, 0, ZMM},
    {"amx-tile", LEAF_7_D, 24, TILES},
    {"amx-int8", LEAF_7_D, 25, TILES},
};
#define COUNT (sizeof features / sizeof features[0])
_Static_assert(COUNT <= 64, "kiln_cpu_features has 64 bits");

#define OSXSAVE (1u << 27) /* of leaf 1, ECX: XGETBV may be used */
#define AVX10   (1u << 19) /* of leaf 7.1, EDX */

static uint32_t saved_state(uint32_t leaf_1_c) {
    uint32_t low = 0, high = 0;
    if ((leaf_1_c & OSXSAVE) != 0)
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void read_words(uint32_t *words) {
    uint32_t a, b, c, d;
    __cpuid(0, a, b, c, d);
    const uint32_t last = a;
    if (last >= 1) {
        __cpuid(1, a, b, c, d);
        words[LEAF_1_C] = c;
    }
    if (last >= 7) {
        __cpuid_count(7, 0, a, b, c, d);
        words[LEAF_7_B] = b;
        words[LEAF_7_C] = c;
        words[LEAF_7_D] = d;
        if (a >= 1) {
            __cpuid_count(7, 1, a, b, c, d);
            words[LEAF_7_1_A] = a;
            words[LEAF_7_1_D] = d;
        }
    }
    if (last >= 0x24 && (words[LEAF_7_1_D] & AVX10) != 0) {
        __cpuid_count(0x24, 0, a, b, c, d);
        words[AVX10_2] = (b & 0xff) >= 2;
    }
    __cpuid(0x80000000u, a, b, c, d);
    if (a >= 0x80000001u) {
        __cpuid(0x80000001u, a, b, c, d);
        words[LEAF_EXTENDED_C] = c;
    }
}

/* Whether this process may use tile registers, for which it has to ask. */
static bool may_use_tiles(void) {
#if defined(__linux__) && defined(__x86_64__)
    /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): Linux,
     * Documentation/arch/x86/xstate.rst. Without a C library: this file serves freestanding
     * programs, too. */
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return result == 0;
#else
    return false; /* Windows and macOS: not asked for */
#endif
}

uint64_t kiln_cpu_features(uint64_t wanted) {
    uint32_t words[WORDS] = {0};
    read_words(words);
    const uint32_t state = saved_state(words[LEAF_1_C]);
    uint64_t found = 0, tiles = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint64_t bit = UINT64_C(1) << i;
        if ((words[features[i].word] >> features[i].bit & 1u) != 0 &&
            (state & features[i].state) == features[i].state)
            found |= bit;
        if (features[i].state == TILES)
            tiles |= bit;
    }
    if ((found & tiles) != 0 && ((found & tiles & wanted) == 0 || !may_use_tiles()))
        found &= ~tiles;
    return found;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    return bit < COUNT ? features[bit].name : NULL;
}
