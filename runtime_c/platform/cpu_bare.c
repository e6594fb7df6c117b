/* cpu_bare.c: a processor without an operating system, whose features are those of the target that
 * this file is compiled for. The linked model needs no others; an image that comes later may.
 */
#include "../core/internal.h"

#ifndef KILN_CPU_FEATURES
#define KILN_CPU_FEATURES UINT64_MAX /* not known: nothing is missing */
#endif

/* By bit, in the order of build_tools/kiln/config/bare_features.py. */
static const char *const features[] = {
#if defined(__arm__)
    "v8m",           "thumb2",   "hwdiv", "dsp",    "v8m.main",        "v8.1m.main", "lob",
    "fpregs",        "fpregs16", "fp16",  "fp64",   "vfp2sp",          "vfp3d16sp",  "vfp4d16sp",
    "fp-armv8d16sp", "fullfp16", "mve",   "mve.fp", "acquire-release", "8msecext",
#elif defined(__riscv)
    "m",     "a",   "f",      "d",     "c",      "e",     "zca",   "zcb", "zcmp",   "zcmt",
    "zba",   "zbb", "zbc",    "zbs",   "zbkb",   "zbkx",  "zmmul", "zfh", "zfhmin", "zfinx",
    "zdinx", "zfa", "zicond", "zaamo", "zalrsc", "zacas", "zcf",   "zcd", "zhinx",  "zhinxmin",
#else
    NULL,
#endif
};

uint64_t kiln_cpu_features(uint64_t wanted) {
    (void)wanted;
    return KILN_CPU_FEATURES;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    return bit < sizeof features / sizeof features[0] ? features[bit] : NULL;
}
