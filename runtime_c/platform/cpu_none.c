/* cpu_none.c: a processor that cannot be asked, as on a board without an operating system. The
 * program and the model are made for one processor there, so nothing is found missing. */
#include "../core/internal.h"

uint64_t kiln_cpu_features(void) {
    return UINT64_MAX;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    (void)bit;
    return NULL;
}
