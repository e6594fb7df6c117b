/* count.c: a plugin of QEMU that counts what a program does.
 *
 * It is compiled for the machine that emulates, and loaded into qemu-ARCH by
 *
 *     -plugin count.so,out=FILE                                   the whole program
 *     -plugin count.so,out=FILE,l1=BYTES,l2=BYTES,line=BYTES      what lies between its marks
 *
 * The first writes the number of instructions to FILE when the program ends. The second appends for
 * each stretch between close(MARK) and close(MARK + 1), as time_kernels.c calls them, a line to
 * FILE, fields separated by tabs:
 *
 *     INSTRUCTIONS  LOADS  STORES  L1_MISSES  L2_MISSES
 *
 * Misses are of two caches of the given sizes, WAYS-way associative with the least recently used
 * line replaced, that see every load and store of the one thread there is from the program's
 * beginning. Instructions are counted a block at a time, before it is executed: one that faults
 * inside of a block counts what follows it too. The declarations are those of QEMU's documented
 * interface ("QEMU TCG Plugins"; Debian has no package with the header): -DPLUGIN_VERSION=1 for
 * QEMU before 9, 2 for later ones; what is used here is the same in both.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info qemu_info;

enum {
    NO_REGISTERS = 0
}; /* QEMU_PLUGIN_CB_NO_REGS */
enum {
    LOADS_AND_STORES = 3
}; /* QEMU_PLUGIN_MEM_RW */

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, void (*call)(unsigned, void *),
                                          int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
                                      void (*call)(unsigned, qemu_plugin_meminfo_t, uint64_t,
                                                   void *),
                                      int flags, int which, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id,
                                          void (*call)(qemu_plugin_id_t, unsigned, int64_t,
                                                       uint64_t, uint64_t, uint64_t, uint64_t,
                                                       uint64_t, uint64_t, uint64_t, uint64_t));

void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*call)(qemu_plugin_id_t, void *),
                                    void *data);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = PLUGIN_VERSION;

#define MARK 0x6b696c6e
#define WAYS 8

typedef struct {
    uint64_t *tags; /* [sets][WAYS], the one used last first; 0: empty */
    uint64_t sets;
} cache;

static cache l1, l2;
static unsigned line_bits;
static bool whole, counting;
static _Atomic uint64_t instructions; /* a program that is counted whole may have threads */
static uint64_t loads, stores, l1_misses, l2_misses;
static const char *out_path = "counts";

static bool misses(cache *c, uint64_t line) {
    uint64_t *set = c->tags + line % c->sets * WAYS;
    const uint64_t tag = line + 1;
    int at = 0;
    while (at < WAYS - 1 && set[at] != tag)
        at++;
    const bool missing = set[at] != tag;
    memmove(set + 1, set, (size_t)at * sizeof *set);
    set[0] = tag;
    return missing;
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
    (void)cpu;
    (void)data;
    if (counting)
        qemu_plugin_mem_is_store(info) ? stores++ : loads++;
    const uint64_t line = address >> line_bits;
    if (misses(&l1, line)) {
        const bool far = misses(&l2, line);
        if (counting) {
            l1_misses++;
            l2_misses += far;
        }
    }
}

static void on_execution(unsigned cpu, void *data) {
    (void)cpu;
    atomic_fetch_add_explicit(&instructions, (uintptr_t)data, memory_order_relaxed);
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    const size_t count = qemu_plugin_tb_n_insns(tb);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_execution, NO_REGISTERS, (void *)(uintptr_t)count);
    if (whole)
        return;
    for (size_t i = 0; i < count; i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), on_access, NO_REGISTERS,
                                         LOADS_AND_STORES, NULL);
}

static void on_syscall(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2,
                       uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7,
                       uint64_t a8) {
    (void)id, (void)cpu, (void)number, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7,
        (void)a8;
    if ((uint32_t)a1 == MARK) {
        loads = stores = l1_misses = l2_misses = 0;
        atomic_store(&instructions, 0);
        counting = true;
    } else if ((uint32_t)a1 == MARK + 1 && counting) {
        counting = false;
        FILE *out = fopen(out_path, "a");
        if (out == NULL)
            exit(3);
        fprintf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n",
                atomic_load(&instructions), loads, stores, l1_misses, l2_misses);
        fclose(out);
    }
}

static void on_end(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    FILE *out = fopen(out_path, "w");
    if (out == NULL)
        return;
    fprintf(out, "%" PRIu64 "\n", atomic_load(&instructions));
    fclose(out);
}

static bool cache_open(cache *c, uint64_t bytes) {
    c->sets = bytes >> line_bits;
    c->sets = c->sets / WAYS ? c->sets / WAYS : 1;
    c->tags = calloc(c->sets * WAYS, sizeof *c->tags);
    return c->tags != NULL;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info *info, int argc, char **argv) {
    (void)info;
    whole = true;
    uint64_t l1_bytes = 32 << 10, l2_bytes = 512 << 10, line = 64;
    for (int i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (value == NULL)
            return -1;
        value++;
        if (strncmp(argv[i], "out=", 4) == 0) {
            out_path = strdup(value);
            continue;
        }
        whole = false;
        if (strncmp(argv[i], "l1=", 3) == 0)
            l1_bytes = strtoull(value, NULL, 10);
        else if (strncmp(argv[i], "l2=", 3) == 0)
            l2_bytes = strtoull(value, NULL, 10);
        else if (strncmp(argv[i], "line=", 5) == 0)
            line = strtoull(value, NULL, 10);
        else
            return -1;
    }
    while ((UINT64_C(1) << (line_bits + 1)) <= line)
        line_bits++;
    if (!cache_open(&l1, l1_bytes) || !cache_open(&l2, l2_bytes))
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    if (whole)
        qemu_plugin_register_atexit_cb(id, on_end, NULL);
    else
        qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    return 0;
}
