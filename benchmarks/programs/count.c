/* count.c: a plugin for QEMU that counts the instructions that a program executes.
 *
 *     qemu-aarch64 -plugin ./libcount.so,out=FILE PROGRAM...      writes their number to FILE
 *
 * When a block of instructions is translated, a call is put before it that adds how many it has. An
 * instruction that faults inside of a block counts what follows it too: a page fault, of which
 * there are few. The declarations are those of QEMU's documentation, "TCG Plugins"; Debian has no
 * package with the header. -DPLUGIN_VERSION=1 for QEMU before 9, 2 for later ones: the functions
 * used are the same.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct qemu_info_t qemu_info_t;
enum qemu_plugin_cb_flags {
    QEMU_PLUGIN_CB_NO_REGS
};
typedef void (*translated_fn)(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void (*executed_fn)(unsigned int cpu, void *data);
typedef void (*ended_fn)(qemu_plugin_id_t id, void *data);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_fn function);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, executed_fn function,
                                          enum qemu_plugin_cb_flags flags, void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, ended_fn function, void *data);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = PLUGIN_VERSION;

static _Atomic uint64_t executed;
static char path[4096];

static void add(unsigned int cpu, void *data) {
    (void)cpu;
    atomic_fetch_add_explicit(&executed, (uint64_t)(uintptr_t)data, memory_order_relaxed);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, add, QEMU_PLUGIN_CB_NO_REGS,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void ended(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        (void)fprintf(file, "%llu\n", (unsigned long long)atomic_load(&executed));
        (void)fclose(file);
    }
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int count,
                               char **words) {
    (void)info;
    if (count != 1 || strncmp(words[0], "out=", 4) != 0 || strlen(words[0] + 4) >= sizeof path) {
        (void)fprintf(stderr, "count: usage: -plugin libcount.so,out=FILE\n");
        return 1;
    }
    (void)strcpy(path, words[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
