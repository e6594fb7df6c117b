/* cpu_arm_linux.c: the features of a 64-bit or 32-bit ARM processor, as Linux reports them to every
 * program. A 32-bit kernel reports half-precision conversions (LLVM's fp16) only as part of VFPv3.
 *
 * The words AT_HWCAP and AT_HWCAP2 of the auxiliary vector have a bit for each feature that the
 * processor has and the kernel supports (Linux, Documentation/arch/arm64/elf_hwcaps.rst and
 * arch/{arm,arm64}/include/uapi/asm/hwcap.h). The bit numbers stand here, since the headers of an
 * old C library lack the newer ones. The length of SVE's registers is that of the calling thread,
 * which threads that it starts inherit.
 */
#include <sys/auxv.h>

#include "../core/internal.h"

#define VERSION 2 /* in place of a word: the bit is the least version of the architecture */
#define LENGTH  3 /* in place of a word: the least number of bits of SVE's registers */

/* By bit of kiln_cpu_features, in the order of build_tools/kiln/config/cpu_features.py: the word,
 * 0 for AT_HWCAP and 1 for AT_HWCAP2, and the bit of it. */
static const struct {
    const char *name;
    uint8_t word;
    uint16_t bit;
} features[] = {
#if defined(__aarch64__)
    {"fp-armv8", 0, 0},    {"neon", 0, 1},          {"lse", 0, 8},           {"fullfp16", 0, 10},
    {"rdm", 0, 12},        {"jsconv", 0, 13},       {"complxnum", 0, 14},    {"rcpc", 0, 15},
    {"sha3", 0, 17},       {"dotprod", 0, 20},      {"sve", 0, 22},          {"fp16fml", 0, 23},
    {"lse2", 0, 25},       {"rcpc-immo", 0, 26},    {"flagm", 0, 27},        {"sve2", 1, 1},
    {"sve-bitperm", 1, 4}, {"sve-sha3", 1, 5},      {"altnzcv", 1, 7},       {"fptoint", 1, 8},
    {"i8mm", 1, 13},       {"bf16", 1, 14},         {"sme", 1, 23},          {"cssc", 1, 34},
    {"sve2p1", 1, 36},     {"sme2", 1, 37},         {"sme2p1", 1, 38},       {"mops", 1, 43},
    {"hbc", 1, 44},        {"sve-b16b16", 1, 45},   {"rcpc3", 1, 46},        {"lut", 1, 49},
    {"faminmax", 1, 50},   {"sve256", LENGTH, 256}, {"sve512", LENGTH, 512},
#else
    {"v7", VERSION, 7}, {"v8", VERSION, 8},  {"dsp", 0, 7},        {"neon", 0, 12},
    {"vfp3", 0, 13},    {"vfp4", 0, 16},     {"hwdiv-arm", 0, 17}, {"hwdiv", 0, 18},
    {"d32", 0, 19},     {"fullfp16", 0, 23}, {"dotprod", 0, 24},   {"fp16fml", 0, 25},
    {"bf16", 0, 26},    {"i8mm", 0, 27},
#endif
};
#define COUNT (sizeof features / sizeof features[0])
_Static_assert(COUNT <= 64, "kiln_cpu_features has 64 bits");

/* The architecture's version, which 32-bit ARM Linux gives as text, such as "v7l". */
static uint32_t version(void) {
    const char *platform = (const char *)getauxval(AT_PLATFORM);
    return platform != NULL && platform[0] == 'v' ? (uint32_t)platform[1] - '0' : 0;
}

#define HWCAP_HAS_SVE (UINT64_C(1) << 22) /* of 64-bit ARM */

/* Bits of a register of SVE; 0 without SVE. The instruction stands as a number for old assemblers.
 */
static uint64_t length(uint64_t hwcap) {
#if defined(__aarch64__)
    if ((hwcap & HWCAP_HAS_SVE) != 0) {
        register uint64_t bytes __asm__("x0");
        __asm__ volatile(".inst 0x04bf5020" /* rdvl x0, #1 */ : "=r"(bytes));
        return 8 * bytes;
    }
#endif
    (void)hwcap;
    return 0;
}

uint64_t kiln_cpu_features(uint64_t wanted) {
    (void)wanted;
    const uint64_t words[] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    const uint64_t bits = length(words[0]);
    uint64_t found = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bit = features[i].bit;
        const bool has = features[i].word == VERSION  ? version() >= bit
                         : features[i].word == LENGTH ? bits >= bit
                                                      : (words[features[i].word] >> bit & 1u) != 0;
        if (has)
            found |= UINT64_C(1) << i;
    }
    return found;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    return bit < COUNT ? features[bit].name : NULL;
}
