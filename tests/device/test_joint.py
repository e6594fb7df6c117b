"""Several models in one library: the outputs of their own bundles, also when they run at the same time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.device.check.runners import runner_for
from kiln.device.link import link, link_flags
from kiln.emit.joint_example import example_lines
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper

from .building import Project

# Both models run step by step in turns, each in its part of one arena; their outputs must be those of runs
# one after the other in all of the arena.
PROGRAM = """
#include <stdio.h>
#include <string.h>

#include "pair.h"

static _Alignas(PAIR_ARENA_ALIGN) unsigned char arena[PAIR_ARENA_BYTES];
static float x[ONE_INPUT_0_ELEMENTS], y[2][ONE_OUTPUT_0_ELEMENTS], want[2][ONE_OUTPUT_0_ELEMENTS];

int main(void) {
    const kiln_model *models[2] = {&one, &two};
    const size_t offsets[2] = {PAIR_ARENA_OF_ONE, PAIR_ARENA_OF_TWO};
    kiln_session sessions[2];
    for (int i = 0; i < (int)ONE_INPUT_0_ELEMENTS; i++)
        x[i] = (float)(i % 7) - 3.0f;
    for (int i = 0; i < 2; i++) {
        kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
        const DLTensor in = kiln_bind(&models[i]->inputs[0], models[i]->inputs[0].shape, x);
        const DLTensor out = kiln_bind(&models[i]->outputs[0], models[i]->outputs[0].shape, want[i]);
        if (kiln_open(&sessions[i], models[i], &config) != KILN_OK ||
            kiln_run(&sessions[i], &in, &out) != KILN_OK)
            return 1;
    }
    DLTensor in[2], out[2];
    for (int i = 0; i < 2; i++) {
        kiln_config config = {.arena = arena + offsets[i], .arena_bytes = models[i]->buckets[0].arena_bytes};
        in[i] = kiln_bind(&models[i]->inputs[0], models[i]->inputs[0].shape, x);
        out[i] = kiln_bind(&models[i]->outputs[0], models[i]->outputs[0].shape, y[i]);
        if (kiln_open(&sessions[i], models[i], &config) != KILN_OK ||
            kiln_begin(&sessions[i], &in[i], &out[i]) != KILN_OK)
            return 2;
    }
    while (kiln_steps_left(&sessions[0]) + kiln_steps_left(&sessions[1]) > 0)
        for (int i = 0; i < 2; i++)
            if (kiln_steps_left(&sessions[i]) > 0 && kiln_step(&sessions[i]) != KILN_OK)
                return 3;
    for (int i = 0; i < 2; i++)
        if (memcmp(y[i], want[i], sizeof y[i]) != 0 || y[i][0] == 0.0f)
            return 4;
    printf("%d\\n", memcmp(y[0], y[1], sizeof y[0]) != 0);
    return 0;
}
"""


def save_pair(folder: Path) -> None:
    """one: ((x W) U) V and two: ((x W) V) U, with equal weights; softmax keeps the matrices apart."""
    weights = normal(5, 0.3, w=(32, 32), u=(32, 32), v=(32, 32))
    for name, order in (("one", "wuv"), ("two", "wvu")):
        nodes, value = [], "x"
        for at, weight in enumerate(order):
            nodes.append(helper.make_node("MatMul", [value, weight], [f"m{at}"]))
            value = "y" if at == 2 else f"s{at}"
            nodes.append(helper.make_node("Softmax", [f"m{at}"], [value], axis=-1))
        save_network(folder / f"{name}.onnx", nodes, {"x": [4, 32]}, {"y": [4, 32]}, weights)


@pytest.mark.heavy
def test_two_models_in_one_program(project: Project, tmp_path: Path) -> None:
    save_pair(project.folder)
    words = ("target=x86_64", "model=one.onnx,two.onnx")
    out = project.make(*words, "joint", "test", "name=pair", "together=one+two")
    assert out.count("one on x86_64") >= 2 and out.count("two on x86_64") >= 2 and "FAILED" not in out
    figures = read_json(project.build / ".stages/x86_64/pair/joint.json")
    assert figures["params_bytes"] * 2 == sum(figures["params_bytes_alone"].values())
    assert figures["kernels"] < sum(figures["kernels_alone"].values())
    assert figures["flash_bytes"] < sum(figures["flash_bytes_alone"].values())
    assert figures["arena_bytes"][""] >= sum(figures["arena_bytes_alone"][""].values()) > 0
    folder, target = project.build / "x86_64/pair", load_target("x86_64")
    assert (folder / "lib/libpair.so").is_file()
    source = tmp_path / "both.c"
    source.write_text(PROGRAM)
    program = link(
        target,
        [source],
        ["-O1", *link_flags(target, "pthread")],
        tmp_path / "work" / "both",
        include=[folder / "include"],
        libraries=[folder / "lib/libpair.a"],
    )
    done = runner_for(target).run(program, [], send={}, fetch={}, timeout=60)
    assert (done.status, done.stdout) == (0, "1\n")
    example = tmp_path / "example.c"
    example.write_text("\n".join(example_lines((folder / "include/pair.h").read_text())))
    program = link(
        target,
        [example],
        ["-O1", "-Wall", "-Werror", *link_flags(target, "pthread")],
        tmp_path / "work" / "example",
        include=[folder / "include"],
        libraries=[folder / "lib/libpair.a"],
    )
    assert runner_for(target).run(program, [], send={}, fetch={}, timeout=60).status == 0


@pytest.mark.heavy  # the runner of a device is that of a single model
def test_on_a_device(project: Project) -> None:
    save_pair(project.folder)
    out = project.make("target=host", "model=one.onnx,two.onnx", "joint", "test", "name=pair", "device=local")
    assert out.count("one on host (device 'local'") == 2 and "FAILED" not in out
    assert (project.build / ".stages/host/pair/on/local/test.json").is_file()


def test_wrong_calls_are_one_line_before_anything_is_built(project: Project) -> None:
    save_pair(project.folder)
    stages = project.build / ".stages" / "aarch64"
    before = set(stages.glob("*/lower"))
    for words, message in (
        (("model=one.onnx", "joint"), "joint: at least two models expected: model=a,b"),
        (("model=one.onnx,two.onnx", "joint", "name=one"), "option 'name': 'one' is one of the models"),
        (("model=one.onnx,two.onnx", "joint", "name=a-b"), "option 'name': 'a-b' cannot name a C function"),
        (
            ("model=one.onnx,two.onnx", "joint", "name=jn"),
            "option 'name': 'jn' is a word of C, a function of",
        ),
        (("model=one.onnx,two.onnx", "name=pair"), "option 'name' is for the goal joint"),
        (("model=one.onnx,two.onnx", "joint", "package=zephyr"), "for which Kiln makes no package"),
        (
            ("model=one.onnx,two.onnx", "joint", "together=one+six"),
            "option 'together': 'six', allowed: one, two",
        ),
    ):
        done = project.scons("target=aarch64", *words)
        assert done.returncode != 0 and message in done.stderr + done.stdout, done.stderr + done.stdout
        assert "Traceback" not in done.stderr + done.stdout
    assert set(stages.glob("*/lower")) == before


@pytest.mark.heavy
def test_on_a_microcontroller(project: Project) -> None:
    emulator = load_target("cortex_m4").emulator
    if emulator is None or shutil.which(emulator.command) is None:
        pytest.skip("qemu-system-arm is not installed")
    words = ("target=cortex_m4", "model=rock_paper_scissors,micro_speech")
    out = project.make(*words, "joint", "test", "name=pair")
    assert out.count("max error 0 levels") == 12 and out.count("205 of 205 checks") == 4, out
    figures = read_json(project.build / ".stages/cortex_m4/pair/joint.json")
    assert figures["flash_bytes"] < sum(figures["flash_bytes_alone"].values()) - 3000  # one runtime
    assert figures["arena_bytes"][""] == max(figures["arena_bytes_alone"][""].values())
