"""A bundle on a processor that lacks its target's instructions: an error that names them, and no signal."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import Target, load_target
from kiln.config.library import load_variant
from kiln.device import link
from kiln.device.check.runners.qemu_user import open_runner
from kiln.lower.target_check import features_by_variant
from kiln.toolchain import compiler_command

from . import tiny

PROGRAM = """
#include <stdio.h>
#include "tiny.h"

static _Alignas(TINY_ARENA_ALIGN) unsigned char arena[TINY_ARENA_BYTES];

int main(void) {
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    float y[6] = {0};
    char text[400];
    kiln_session session;
    const kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    const kiln_status status = kiln_open(&session, &tiny, &config);
    kiln_detail_text(kiln_error(&session), text, sizeof text);
    printf("%s\\n%s\\n", kiln_status_name(status), text);
    printf("%s\\n", kiln_status_name(tiny_run(&session, x, y)));
    printf("%g\\n", y[0]);
    return 0;
}
"""


def _program(folder: Path, target: Target) -> Path:
    """A program that opens and runs the tiny model, whose kernels alone are compiled for the target's CPU."""
    needed = {"arch": target.arch, "variants": [v.model_dump() for v in features_by_variant(target)]}
    bundle = folder / "bundle"
    tiny.assemble(
        bundle, target, {**tiny.plan(), "cpu": needed}, tiny.W.tobytes(), tiny.KERNELS,
        kernel_command=[*compiler_command(target), "-O3"],
    )  # fmt: skip
    (folder / "main.c").write_text(PROGRAM)
    return link.link(
        target,
        [folder / "main.c"],
        ["-O2", *link.link_flags(target, "pthread")],
        folder / "program",
        include=[bundle / "include"],
        libraries=[bundle / "lib" / "libtiny.a"],
    )


def _said(target: Target, cpu: str, program: Path) -> list[str]:
    assert target.emulator is not None
    emulator = target.emulator.model_copy(update={"args": ["-cpu", cpu]})
    runner = open_runner(target.model_copy(update={"emulator": emulator}))
    done = runner.run(program, [], send={}, fetch={}, timeout=60)
    assert done.status == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


WORKS = ["KILN_OK", "session: no error", "KILN_OK", "2.25"]
CASES = {
    "x86_64": (
        "Nehalem",
        "fma, movbe, avx, f16c, bmi, avx2, bmi2, lzcnt",
        "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid",
    ),
    "aarch64_a76": ("cortex-a53", "lse, fullfp16, rdm, rcpc, dotprod", "max"),
    "armv7": ("cortex-r5f", "neon, d32", "cortex-a9"),
    "aarch64_sve:sve256": ("max,sve256=off", "sve256", "max,sve512=off"),
    "aarch64_sve:sve512": ("cortex-a76", "sve, sve512", "max,sve1024=on"),  # a longer register is no fault
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if name == "armv7" else name for name in CASES]
)
def test_refused_with_the_features_that_it_lacks(name: str, tmp_path: Path) -> None:
    target, (old, lacks, new) = load_variant(name), CASES[name]
    program = _program(tmp_path, target)
    assert _said(target, new, program) == WORKS
    refused = f"processor: lacks {lacks}, which the model's kernels are compiled for"
    assert _said(target, old, program) == ["KILN_CPU", refused, "KILN_NOT_OPEN", "0"]


def test_an_operating_system_that_does_not_save_registers(tmp_path: Path) -> None:
    """AVX without the operating system's support (OSXSAVE) is no AVX."""
    target = load_target("x86_64").for_variant("v3")
    program = _program(tmp_path, target)
    lacks = _said(target, "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid,-xsave", program)[1]
    assert lacks.startswith("processor: lacks fma, avx, f16c, avx2, which")
