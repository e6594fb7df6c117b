/* cpu_riscv_linux.c: the features of a 64-bit RISC-V processor, as Linux reports them to every
 * program, and the length of its vector registers, which the processor reports.
 *
 * The system call riscv_hwprobe (Linux 6.4, Documentation/arch/riscv/hwprobe.rst) names extensions.
 * An older kernel has AT_HWCAP, whose bit for V some kernels also set for version 0.7.1 of the
 * vector extension, which is another instruction set: the processor is then tested with a vtype
 * that only version 1.0 has. Everything is written by number, since the headers and assemblers of
 * an old system lack the names.
 */
#define _DEFAULT_SOURCE /* syscall */

#include <sys/auxv.h>
#include <unistd.h>

#include "../core/internal.h"

enum {
    EXTENSION, /* a bit of the value of riscv_hwprobe's key 4 */
    LENGTH     /* the least number of bits of a vector register */
};

/* By bit of kiln_cpu_features, in the order of build_tools/kiln/config/cpu_features.py. */
static const struct {
    const char *name;
    uint8_t kind;
    uint16_t value;
} features[] = {
    {"v", EXTENSION, 2},        {"zba", EXTENSION, 3},      {"zbb", EXTENSION, 4},
    {"zbs", EXTENSION, 5},      {"zbc", EXTENSION, 7},      {"zbkb", EXTENSION, 8},
    {"zvbb", EXTENSION, 17},    {"zvbc", EXTENSION, 18},    {"zvkb", EXTENSION, 19},
    {"zfh", EXTENSION, 27},     {"zfhmin", EXTENSION, 28},  {"zvfh", EXTENSION, 30},
    {"zvfhmin", EXTENSION, 31}, {"zfa", EXTENSION, 32},     {"zacas", EXTENSION, 34},
    {"zicond", EXTENSION, 35},  {"zcb", EXTENSION, 44},     {"zvl256b", LENGTH, 256},
    {"zvl512b", LENGTH, 512},   {"zvl1024b", LENGTH, 1024},
};
#define COUNT (sizeof features / sizeof features[0])
_Static_assert(COUNT <= 64, "kiln_cpu_features has 64 bits");

#define RISCV_HWPROBE 258 /* the system call */
#define IMA_EXT_0     4   /* its key of extensions */
#define VECTOR        (UINT64_C(1) << 2)
#define HWCAP_VECTOR  (1ul << ('V' - 'A'))

/* Whether the vector instructions are those of version 1.0: only it has half a register (mf2). */
static bool is_version_1(void) {
    long vtype;
    __asm__ volatile(".word 0x0c7072d7\n" /* vsetvli t0, zero, e8, mf2, ta, ma */
                     "csrr %0, 0xc21\n"   /* vtype: negative where that is not supported */
                     : "=r"(vtype)
                     :
                     : "t0");
    return vtype >= 0;
}

/* Bits of a vector register; called only on processors with the vector extension. */
static uint64_t vector_bits(void) {
    uint64_t bytes;
    __asm__ volatile("csrr %0, 0xc22" /* vlenb */ : "=r"(bytes));
    return 8 * bytes;
}

static uint64_t extensions(void) {
    struct {
        int64_t key;
        uint64_t value;
    } pair = {IMA_EXT_0, 0};
    if (syscall(RISCV_HWPROBE, &pair, 1, 0, NULL, 0) != 0 || pair.key != IMA_EXT_0)
        pair.value = 0; /* the kernel knows neither, or not the key */
    if ((pair.value & VECTOR) == 0 && (getauxval(AT_HWCAP) & HWCAP_VECTOR) != 0 && is_version_1())
        pair.value |= VECTOR;
    return pair.value;
}

uint64_t kiln_cpu_features(uint64_t wanted) {
    (void)wanted;
    const uint64_t has = extensions();
    const uint64_t length = (has & VECTOR) != 0 ? vector_bits() : 0;
    uint64_t found = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        if (features[i].kind == EXTENSION ? (has >> features[i].value & 1u) != 0
                                          : length >= features[i].value)
            found |= UINT64_C(1) << i;
    return found;
}

const char *kiln_cpu_feature_name(uint32_t bit) {
    return bit < COUNT ? features[bit].name : NULL;
}
