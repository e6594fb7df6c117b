"""Microcontrollers: bundles are linked with Kiln's own start-up code and run on whole machines in QEMU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from conformance.tflite_recurrent_cases import one_lstm
from kiln.config import Target, list_targets, load_target
from kiln.device import bare
from kiln.device.check.runners import Runner, runner_for
from kiln.device.check.runners.machine_faults import missing_memory
from kiln.device.link import link, link_flags
from kiln.emit.run_time_library import computes_floats
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.report.elf import read_program
from networks import normal, save_network
from onnx import helper

from .building import Project

GATE = ("cortex_m0plus", "cortex_m4", "cortex_m55", "riscv32_imac")
OTHERS = tuple(
    entry.name
    for entry in list_targets()
    if load_target(entry.name).deployment == "freestanding" and entry.name not in GATE
)


@pytest.mark.parametrize("name", [*GATE, *OTHERS])
def test_machines_have_the_memory_of_their_targets(name: str) -> None:
    target = load_target(name)
    assert target.emulator is not None
    if shutil.which(target.emulator.command) is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    assert missing_memory(target, [target.emulator.command, *target.emulator.args]) == ""


# Its one argument says how the program ends.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int values[3] = {3, 1, 2};
static volatile unsigned spent;

static int ascending(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv) {
    struct timespec one, two;
    const int mode = argc > 1 ? atoi(argv[1]) : 0;
    if (mode == 1)
        return *(volatile int *)0xA0000001u; /* no memory is there */
    while (mode == 2)
        ;
#ifdef __riscv
    if (mode == 3)
        __asm__ volatile("li sp, 64\nebreak"); /* the handler's own stack is outside of the memory */
#endif
    qsort(values, 3, sizeof values[0], ascending);
    void *first = malloc(1000), *second = calloc(10, 10);
    free(first);
    void *again = malloc(900), *most = malloc((size_t)-1), *many = malloc(0x7FFFFFF0u);
    printf("%d %d %d %s %c%% %x %lld %zu %d\n", values[0], values[1], -values[2], "text", 'c', 255u,
           -5000000000ll, sizeof values, again == first && !most && !many && *(char *)second == 0);
    timespec_get(&one, TIME_UTC);
    for (unsigned i = 0; i < 10000; i++)
        spent = i;
    timespec_get(&two, TIME_UTC);
    printf("%lld\n", (two.tv_sec - one.tv_sec) * 1000000000ll + two.tv_nsec - one.tv_nsec);
    FILE *in = fopen("given", "rb"), *out = fopen("made", "wb");
    char text[8] = "";
    if (in == NULL || out == NULL || fopen("absent", "rb") != NULL || fread(text, 1, 8, in) != 5)
        return 1;
    for (int i = 0; i < 200; i++) /* longer than a buffer */
        fwrite(text, 1, 5, out);
    fprintf(stderr, "ends\n");
    return fclose(out) == 0 ? 7 : 2;
}
"""


def linked(name: str, folder: Path, changed: Target | None = None) -> tuple[Path, Runner]:
    """PROGRAM for a target, which may be `changed`, and the target's runner."""
    target = changed or load_target(name)
    assert target.emulator is not None
    if shutil.which(target.emulator.command) is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    source = folder / "program.c"
    source.write_text(PROGRAM)
    parts = bare.parts(target, folder)
    # As Bundle.link_program has them: for other flags zig makes its library of functions again.
    flags = ["-Os", "-g", *link_flags(target, "none", entry=None), *parts.flags]
    program = link(
        target, [source, *parts.sources], flags, folder / "work" / "program", include=parts.include
    )
    return program, runner_for(target)


@pytest.mark.parametrize("name", ["cortex_m0plus", pytest.param("riscv32_imafc", marks=pytest.mark.heavy)])
def test_the_c_library_files_and_ends_of_programs(name: str, tmp_path: Path) -> None:
    program, runner = linked(name, tmp_path)
    given, made = tmp_path / "given", tmp_path / "made"
    given.write_bytes(b"abcde")
    times = []
    for _ in range(2):
        done = runner.run(program, ["0"], send={"given": given}, fetch={"made": made}, timeout=60)
        first, second = done.stdout.splitlines()
        assert (done.status, first, done.stderr) == (7, "1 2 -3 text c% ff -5000000000 12 1", "ends\n")
        times.append(int(second))
        assert made.read_bytes() == b"abcde" * 200
    # A loop of 10,000 rounds with 3 to 8 instructions each; the same at every run.
    assert 30_000 <= times[0] <= 80_000 and times[0] == times[1] and runner.unit == "instructions"
    done = runner.run(program, ["1"], send={}, fetch={}, timeout=60)
    assert done.status == 132
    assert re.match(r"exception at 0x[0-9a-f]+, cause 0x[0-9a-f]+", done.stderr)
    if name.startswith("riscv32"):  # the Cortex-M0 has no register that says the cause
        assert done.stderr.endswith("an address without memory: compare key 'memory' with the machine")
        assert runner.run(program, ["3"], send={}, fetch={}, timeout=60).status == 1
    with pytest.raises(KilnError, match=r"still running after its limit of 1 s and was stopped"):
        runner.run(program, ["2"], send={}, fetch={}, timeout=1)


def test_a_region_that_the_machine_lacks_is_named_before_the_start(tmp_path: Path) -> None:
    """A program without memory for its stack might never end."""
    target = load_target("cortex_m4")
    assert target.emulator is not None and target.memory is not None
    if shutil.which(target.emulator.command) is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    code, data, *_ = target.memory
    elsewhere = data.model_copy(update={"origin": 0x40000000})
    runner = runner_for(target.model_copy(update={"memory": [code, elsewhere]}))
    with pytest.raises(
        KilnError, match=r"no memory at 0x40000000 to 0x40400000 for region 'ram' .*0x20000000"
    ):
        runner.run(tmp_path / "program", [], send={}, fetch={}, timeout=60)


@pytest.mark.parametrize(
    ("region", "size", "told"),
    [
        ("ram", 2048, "next to variables it has no room for 4096 bytes of stack"),
        pytest.param("flash", 1024, r"at least \d+ bytes do not fit into it", marks=pytest.mark.heavy),
    ],
)
def test_a_region_that_is_too_small_for_the_program(
    region: str, size: int, told: str, tmp_path: Path
) -> None:
    """One line with the region, its key and its size, and no path of the linker."""
    target = load_target("cortex_m4")
    regions = [
        entry.model_copy(update={"bytes": size}) if entry.name == region else entry
        for entry in target.memory or ()
    ]
    with pytest.raises(KilnError) as error:
        linked("cortex_m4", tmp_path, target.model_copy(update={"memory": regions}))
    where = rf"target 'cortex_m4': linking program: region '{region}' \(key 'memory', {size} bytes\)"
    assert re.match(rf"{where} is too small: {told}; the bundle is made without ", str(error.value))


def float_functions(project: Project, name: str, model: str) -> list[str]:
    """The functions that compute floats in software, in a program with the model."""
    (program,) = (project.build / ".stages" / name / model / "device").glob("size_stack-*")
    return [function for function in read_program(program).functions if computes_floats(function)]


def on_machines(project: Project, names: tuple[str, ...], model: str) -> None:
    """Build `model` for targets; test it on their machines, and measure one of them."""
    for name in names:
        emulator = load_target(name).emulator
        if emulator is None or shutil.which(emulator.command) is None:
            pytest.skip(f"the emulator of {name} is not installed")
    out = project.make(f"target={','.join(names)}", f"model={model}", "test")
    assert out.count(" instructions)\n") == 3 * len(names) and "FAILED" not in out, out
    assert out.count("205 of 205 checks of repeated runs, guards and wrong arguments ok") == len(names)


def test_an_int8_model_on_every_kind_of_core(project: Project) -> None:
    on_machines(project, GATE, "micro_speech")
    for name in ("cortex_m0plus", "riscv32_imac"):  # neither has an FPU
        assert float_functions(project, name, "micro_speech") == []


@pytest.mark.heavy
def test_an_int8_lstm_has_no_floats(project: Project) -> None:
    """With all its parts, on cores without an FPU; its levels are those of LiteRT."""
    parts = {"norm": True, "coupled": True, "peephole": True, "project": "bias", "cell_clip": 0.9}
    case = one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", "parts", "integer", 5, False, **parts)
    path = case.write(project.folder)
    names = ("cortex_m0plus", "cortex_m3")
    out = project.make(f"target={','.join(names)}", f"model={path}", "test")
    assert out.count("max error 0 levels") == out.count("  vector ") > 0, out
    for name in names:
        assert float_functions(project, name, path.stem) == []


def test_instructions_are_counted_step_by_step(project: Project) -> None:
    """Of a bundle that the test before has built."""
    out = project.make("target=cortex_m4", "model=micro_speech", "profile")
    assert "emulated: instructions are counted, and no time is measured" in out and " ms" not in out
    profile = read_json(project.build / ".stages/cortex_m4/micro_speech/profile.json")
    assert (profile["time_unit"], profile["rate_unit"], profile["peak_gflops"]) == (
        "M instr.",
        "op/instr.",
        None,
    )
    (runs,) = profile["runs"]
    total = sum(step["time"] for step in profile["steps"])
    assert 0.1 < total < runs["least"] < 1.05 * total  # the runtime's own work is small
    assert runs["nine_in_ten"] - runs["least"] < 1e-3


@pytest.mark.heavy
def test_an_int8_model_on_the_other_cores(project: Project) -> None:
    on_machines(project, OTHERS, "micro_speech")


@pytest.mark.heavy
def test_patches_keep_a_budget(project: Project) -> None:
    """Patches compute a model with 69 KiB of feature maps in 16 KiB, with the same levels as LiteRT."""
    text = (Path(__file__).parents[2] / "models/rock_paper_scissors.yaml").read_text()
    (project.folder / "models/small.yaml").write_text(
        text.replace("golden:\n", "budget: {ram_bytes: 16KiB}\ngolden:\n")
    )
    out = project.make("target=cortex_m4", "model=small", "test")
    assert out.count("max error 0 levels") == 3, out
    (bucket,) = read_json(project.build / ".stages/cortex_m4/small/plan/plan.json")["buckets"]
    assert bucket["arena_bytes"] <= 16 << 10 < bucket["patches"]["bytes_before"]


# Two regions of RAM and two of parameters on each board, too small to hold the model alone.
REGIONS = {
    "cortex_m55": """memory:
  - {name: itcm, origin: 0x10000000, bytes: 512KiB, holds: [code]}
  - {name: near, origin: 0x11000000, bytes: 6KiB, holds: [parameters]}
  - {name: far, origin: 0x11100000, bytes: 1MiB, holds: [parameters], cost: 3, section: .far}
  - {name: dtcm, origin: 0x30000000, bytes: 448KiB, holds: [data, heap]}
  - {name: fast, origin: 0x30070000, bytes: 20KiB, holds: [arena]}
  - {name: ddr, origin: 0x70000000, bytes: 64KiB, holds: [arena], cost: 4}
""",
    "cortex_m33": """memory:
  - {name: flash, origin: 0x10000000, bytes: 4MiB, holds: [code, parameters], cost: 2}
  - {name: near, origin: 0x38000000, bytes: 4KiB, holds: [parameters]}
  - {name: ram, origin: 0x38100000, bytes: 1MiB, holds: [data, arena], cost: 3, reserve: 960KiB}
  - {name: fast, origin: 0x38200000, bytes: 24KiB, holds: [arena]}
  - {name: psram, origin: 0x80000000, bytes: 16MiB, holds: [heap]}
""",
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", REGIONS)
def test_arena_and_parameters_in_several_regions(project: Project, name: str) -> None:
    """A model whose arena and parameters are in two regions each has the same levels as LiteRT."""
    text = (Path(__file__).parents[2] / f"targets/{name}.yaml").read_text()
    before, after = text[: text.index("memory:")], text[text.index("clock:") :]
    (project.folder / "targets").mkdir(exist_ok=True)
    (project.folder / "targets/regions.yaml").write_text(before + REGIONS[name] + after)
    out = project.make("target=regions", "model=rock_paper_scissors", "test", "size")
    assert out.count("max error 0 levels") == 3 and "209 of 209 checks" in out, out
    plan = read_json(project.build / ".stages/regions/rock_paper_scissors/plan/plan.json")
    fast, other = plan["regions"]
    assert fast["name"] == "fast" and 0 < fast["bytes"] <= 24 << 10 and other["bytes"] > 0
    near, far = plan["params"]["parts"]
    assert near["name"] == "near" and 0 < near["bytes"] < 6 << 10 < near["bytes"] + far["bytes"]
    assert re.search(r"region fast of target regions, ram", out)


@pytest.mark.heavy
def test_a_machine_with_little_memory(project: Project) -> None:
    """Parameters in flash are no reason to refuse a test; tensors that do not fit are, in one line."""
    text = (Path(__file__).parents[2] / "targets/cortex_m3.yaml").read_text()
    before, after = text[: text.index("memory:")], text[text.index("clock:") :]
    memory = """memory:
  - {name: flash, origin: 0x0, bytes: 4MiB, holds: [code, parameters]}
  - {name: sram, origin: 0x20000000, bytes: 24KiB, holds: [data]}
"""
    (project.folder / "targets/little.yaml").write_text(before + memory + after)
    product, weights = helper.make_node("MatMul", ["x", "w"], ["y"]), normal(8, 1, w=[128, 64])
    save_network(project.folder / "many.onnx", [product], {"x": [1, 128]}, {"y": [1, 64]}, weights)
    out = project.make("target=little", f"model={project.folder / 'many.onnx'}", "test")
    assert "ok\n  left out, no memory: damaged parameters: their copy needs 328" in out, out
    sign = helper.make_node("Neg", ["x"], ["y"])
    save_network(project.folder / "long.onnx", [sign], {"x": [4000]}, {"y": [4000]}, {})
    done = project.scons("target=little", f"model={project.folder / 'long.onnx'}", "test")
    assert done.returncode == 2 and re.search(
        r"with status 3: out of memory: x needs 16\d{3} bytes, and \d+ of the \d+ for the test's tensors "
        r"are free in region 'sram' \(key 'memory' of the target\)\n",
        done.stderr,
    ), done.stderr


def changed(name: str, **keys: object) -> Target:
    """A shipped target with other values of some keys."""
    return load_target(name).model_copy(update=keys)


def test_what_cannot_be_linked_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"'cortex_m4': no program can be linked .* \(key 'memory'\)"):
        bare.parts(changed("cortex_m4", memory=None), tmp_path)
    with pytest.raises(KilnError, match=r"'cortex_m4': it names no emulator|cannot run here"):
        runner_for(changed("cortex_m4", emulator=None))
    regions = load_target("cortex_m4").memory
    assert regions is not None
    small = [region.model_copy(update={"bytes": 1024}) for region in regions]
    target = changed("cortex_m4", memory=small)
    parts = bare.parts(target, tmp_path)
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    with pytest.raises(KilnError, match=r"linking program: .*region '?(flash|ram)") as caught:
        link(
            target,
            [source, *parts.sources],
            ["-Os", "-g", *link_flags(target, "none", entry=None), *parts.flags],
            tmp_path / "work" / "program",
            include=parts.include,
        )
    assert "\n" not in str(caught.value)
