/* cpu_none.c: a processor whose features cannot be queried, as on a board without an operating
 * system. Program and model are compiled for that one processor, so no feature is missing. */
#include "../core/internal.h"

uint64_t kiln_cpu_features(uint64_t wanted) {
    (void)wanted;
    return UINT64_MAX;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    (void)bit;
    return NULL;
}
