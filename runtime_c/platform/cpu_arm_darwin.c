/* cpu_arm_darwin.c: the features of a 64-bit ARM processor of Apple, as the kernel of macOS and iOS
 * reports them to every program (Apple, "Determining instruction set characteristics"). */
#include <stddef.h>
#include <sys/sysctl.h>

#include "../core/internal.h"

/* By bit of kiln_cpu_features, in the order of build_tools/kiln/config/cpu_features.py: the name
 * that the kernel knows after hw.optional.arm.; empty: every processor has it; null: none has. */
static const struct {
    const char *name, *known;
} features[] = {
    {"fp-armv8", ""},
    {"neon", ""},
    {"lse", "FEAT_LSE"},
    {"fullfp16", "FEAT_FP16"},
    {"rdm", "FEAT_RDM"},
    {"jsconv", "FEAT_JSCVT"},
    {"complxnum", "FEAT_FCMA"},
    {"rcpc", "FEAT_LRCPC"},
    {"sha3", "FEAT_SHA3"},
    {"dotprod", "FEAT_DotProd"},
    {"sve", NULL},
    {"fp16fml", "FEAT_FHM"},
    {"lse2", "FEAT_LSE2"},
    {"rcpc-immo", "FEAT_LRCPC2"},
    {"flagm", "FEAT_FlagM"},
    {"sve2", NULL},
    {"sve-bitperm", NULL},
    {"sve-sha3", NULL},
    {"altnzcv", "FEAT_FlagM2"},
    {"fptoint", "FEAT_FRINTTS"},
    {"i8mm", "FEAT_I8MM"},
    {"bf16", "FEAT_BF16"},
    {"sme", "FEAT_SME"},
    {"cssc", "FEAT_CSSC"},
    {"sve2p1", NULL},
    {"sme2", "FEAT_SME2"},
    {"sme2p1", "FEAT_SME2p1"},
    {"mops", "FEAT_MOPS"},
    {"hbc", "FEAT_HBC"},
    {"sve-b16b16", NULL},
    {"rcpc3", "FEAT_LRCPC3"},
    {"lut", "FEAT_LUT"},
    {"faminmax", "FEAT_FAMINMAX"},
    {"sve256", NULL},
    {"sve512", NULL},
};
#define COUNT (sizeof features / sizeof features[0])
_Static_assert(COUNT <= 64, "kiln_cpu_features has 64 bits");

/* Whether the kernel reports a feature; one that it does not know is none that programs may use. */
static int reported(const char *known) {
    static const char prefix[] = "hw.optional.arm.";
    char name[40];
    size_t at = 0;
    for (; prefix[at] != '\0'; at++)
        name[at] = prefix[at];
    for (; *known != '\0' && at + 1 < sizeof name; known++)
        name[at++] = *known;
    name[at] = '\0';
    int value = 0;
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 && value != 0;
}

uint64_t kiln_cpu_features(uint64_t wanted) {
    (void)wanted;
    uint64_t found = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        if (features[i].known != NULL &&
            (*features[i].known == '\0' || reported(features[i].known)))
            found |= UINT64_C(1) << i;
    return found;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    return bit < COUNT ? features[bit].name : NULL;
}
