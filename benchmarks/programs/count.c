/* count.c: a plugin of QEMU that counts the instructions of a program.
 *
 * It is compiled for the machine that emulates, and loaded into qemu-ARCH by
 *
 *     -plugin count.so,out=FILE
 *
 * When the program ends, the number of instructions is written to FILE. Instructions are counted a
 * translated block at a time, before the block is executed: a block that faults counts the
 * instructions after the fault too. The declarations are those of QEMU's documented interface
 * ("QEMU TCG Plugins"; Debian has no package with the header): -DPLUGIN_VERSION=1 for QEMU before
 * 9, 2 for later ones; the functions used here are the same in both.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct qemu_info qemu_info;

enum {
    NO_REGISTERS = 0
}; /* QEMU_PLUGIN_CB_NO_REGS */

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, void (*call)(unsigned, void *),
                                          int flags, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*call)(qemu_plugin_id_t, void *),
                                    void *data);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = PLUGIN_VERSION;

static _Atomic uint64_t instructions; /* the program may have threads */
static const char *out_path = "counts";

static void on_execution(unsigned cpu, void *data) {
    (void)cpu;
    atomic_fetch_add_explicit(&instructions, (uintptr_t)data, memory_order_relaxed);
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    const size_t count = qemu_plugin_tb_n_insns(tb);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_execution, NO_REGISTERS, (void *)(uintptr_t)count);
}

static void on_end(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    FILE *out = fopen(out_path, "w");
    if (out == NULL)
        return;
    fprintf(out, "%" PRIu64 "\n", atomic_load(&instructions));
    fclose(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) != 0)
            return -1;
        out_path = strdup(argv[i] + 4);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_atexit_cb(id, on_end, NULL);
    return 0;
}
