"""64-bit RISC-V: which vector extension the runtime finds, and golden vectors of all variants in QEMU."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln import toolchain
from kiln.config import load_target
from kiln.device.check.runners.local import too_old
from kiln.device.check.runners.qemu_user import open_runner
from kiln.emit.headers import include_flags
from kiln.files import read_json
from kiln.paths import data_dir

from .building import Project

# What the kernel would tell replaces the C library's functions: argument 1 is the value of riscv_hwprobe, or
# "none" for a kernel without it, argument 2 AT_HWCAP. Prints the features that are found.
PROGRAM = """
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include "internal.h"

static const char *hwprobe, *hwcap;

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    struct { long long key; unsigned long long value; } *pair = va_arg(list, void *);
    va_end(list);
    if (number != 258 || strcmp(hwprobe, "none") == 0) {
        errno = ENOSYS;
        return -1;
    }
    pair->value = strtoull(hwprobe, NULL, 0);
    return 0;
}

unsigned long getauxval(unsigned long kind) {
    return kind == AT_HWCAP ? strtoul(hwcap, NULL, 0) : 0;
}

int main(int count, char **words) {
    hwprobe = words[count - 2];
    hwcap = words[count - 1];
    const uint64_t found = kiln_cpu_features(UINT64_MAX);
    for (uint32_t bit = 0; bit < 64; bit++)
        if ((found >> bit & 1u) != 0)
            printf("%s ", kiln_cpu_feature_name(bit));
    return 0;
}
"""
V_OF_HWPROBE, ZBA, V_OF_HWCAP = 1 << 2, 1 << 3, 1 << 21
NO_VECTORS, SHORT, LONG = "rv64", "rv64,v=true,vlen=128", "rv64,v=true,vlen=512"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PROGRAM with the runtime's file."""
    folder = tmp_path_factory.mktemp("features")
    (folder / "main.c").write_text(PROGRAM)
    runtime = data_dir("runtime_c")
    sources = [folder / "main.c", runtime / "platform/cpu_riscv_linux.c"]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{runtime / 'core'}"]
    target = load_target("riscv64")
    command = [*toolchain.oldest_cpu_command(target), *flags, *include_flags(), *map(str, sources)]
    toolchain.link(target, [*command, "-o", str(folder / "features")], "linking")
    return folder / "features"


@pytest.mark.parametrize(
    ("cpu", "hwprobe", "hwcap", "found"),
    [
        (NO_VECTORS, 0, 0, ""),
        (NO_VECTORS, "none", 0, ""),
        (NO_VECTORS, ZBA, 0, "zba"),
        (SHORT, V_OF_HWPROBE | ZBA, 0, "v zba"),
        (SHORT, "none", V_OF_HWCAP, "v"),
        (SHORT, ZBA, V_OF_HWCAP, "v zba"),  # a kernel whose hwprobe does not know of V
        (SHORT, "none", 0, ""),  # a kernel that does not save vector registers
        (LONG, V_OF_HWPROBE, V_OF_HWCAP, "v zvl256b zvl512b"),
    ],
)
def test_vectors_are_found(program: Path, cpu: str, hwprobe: object, hwcap: object, found: str) -> None:
    target = load_target("riscv64")
    assert target.emulator is not None
    emulator = target.emulator.model_copy(update={"args": ["-cpu", cpu]})
    runner = open_runner(target.model_copy(update={"emulator": emulator}))
    done = runner.run(program, [str(hwprobe), str(hwcap)], send={}, fetch={}, timeout=60)
    assert done.stdout.strip() == found


@pytest.mark.heavy
@pytest.mark.parametrize("model", ["resnet", "ppocr_cls", "silero_vad"])  # int8; float; dynamic sizes
def test_all_variants_give_the_golden_outputs(model: str, tmp_path: Path) -> None:
    project = Project(tmp_path, variants=True)
    printed = project.make("target=riscv64", f"model={model}", "test")
    results = read_json(project.build / ".stages/riscv64" / model / "test.json")
    assert results["variant"] == "rv64gc" and len(results["checks"]) >= 150
    for variant, done in zip(load_target("riscv64").variants, results["variants"], strict=True):
        assert variant.emulator is not None
        old = too_old(variant.emulator)  # Debian 12's
        if old is not None:
            assert done == {"variant": variant.name, "not_run": old}
            assert f"variant {variant.name}: not run: {old}" in printed
        else:
            assert done["variant"] == variant.name and len(done["checks"]) >= 150
