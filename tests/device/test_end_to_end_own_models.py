"""Models of a user's own: files without any YAML, where parameters are kept, threads, two in one program."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from elftools.elf.elffile import ELFFile
from kiln.arrays import Array
from kiln.config import load_target
from kiln.device.bundle import Bundle
from kiln.device.check.runners import runner_for
from kiln.device.link import link, link_flags
from kiln.files import read_json
from scons_real import ROOT
from tflite_files import Tensor, write

from .building import Project, write_small_network

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", ["aarch64", pytest.param("armv7", marks=pytest.mark.heavy)])
def test_an_onnx_file_without_yaml(project: Project, target: str) -> None:
    """A float network with a depthwise convolution and a result of 20 axes, on ARM processors."""
    (project.folder / "my nets").mkdir(exist_ok=True)
    write_small_network(project.folder / "my nets" / "2nd-Net v1.onnx", channels=21, groups=21, axes=20)
    printed = project.make(f"target={target}", "model=my nets/2nd-Net v1.onnx", "test", "-j2")
    assert f"m_2nd_net_v1 on {target}" in printed
    assert (project.build / target / "m_2nd_net_v1" / "include" / "m_2nd_net_v1.h").is_file()
    assert (project.build / target / "m_2nd_net_v1.tar.gz").is_file()


def test_a_tflite_file_without_yaml(project: Project, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).integers(-99, 99, (5, 12)).astype("int8")
    tensors = [
        Tensor("x", [1, 12], "int8", 0.1, 3),
        Tensor("w", [5, 12], "int8", 0.01, data=weights),
        Tensor("y", [1, 5], "int8", 0.2, -4),
    ]
    code, options = schema.BuiltinOperator.FULLY_CONNECTED, schema.FullyConnectedOptionsT()
    write(tmp_path / "dense.tflite", tensors, code, options, [0, 1, -1], [2])
    printed = project.make("target=x86_64", f"model={tmp_path / 'dense.tflite'}", "test", "-j2")
    assert "dense on x86_64" in printed
    assert printed.count("max error") == 3


def _section(bundle: Bundle, name: str) -> int:
    """Bytes of the sections called `name…` in a library's parameter object."""
    command = ["ar", "p", str(bundle.library), f"{bundle.name}_params.o"]
    elf = ELFFile(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout))
    return sum(section["sh_size"] for section in elf.iter_sections() if section.name.startswith(name))


def _members(library: Path) -> list[str]:
    done = subprocess.run(["ar", "t", str(library)], check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.heavy) for name in ("x86_64", "aarch64", "armv7")]
)
def test_where_parameters_are_kept(project: Project, target: str) -> None:
    """Parameters in read-only data, in a section of their own and in a file give the same outputs."""
    write_small_network(project.folder / "kept.onnx", channels=33)
    for storage in ("embedded", "section", "file"):
        (project.folder / f"models/kept_{storage}.yaml").write_text(
            f"source: {{kind: file, path: ../kept.onnx}}\nparams: {{storage: {storage}}}\n"
        )
    models = [f"kept_{storage}" for storage in ("embedded", "section", "file")]
    project.make(f"target={target}", f"model={','.join(models)}", "test", "-j2")
    embedded, section, file = (project.bundle(target, model) for model in models)
    plans = [read_json(bundle.folder / "manifest.json")["params"] for bundle in (embedded, section, file)]
    size = plans[0]["bytes"]
    assert size > 33 * 33 * 9 * 4 and [plan["bytes"] for plan in plans] == [size] * 3
    assert _section(embedded, ".rodata") > size and not embedded.params.exists()
    assert _section(section, ".kiln_params") > size and not section.params.exists()
    assert file.params.stat().st_size > size
    assert _section(file, ".rodata") == _section(file, ".kiln_params") == 0
    runs = [vector.inputs for vector in embedded.vectors()]
    outputs = [project.outputs(target, model, runs) for model in models]
    assert _bytes(outputs[0]) == _bytes(outputs[1]) == _bytes(outputs[2])


def _bytes(outputs: list[list[Array]]) -> list[list[bytes]]:
    return [[tensor.tobytes() for tensor in vector] for vector in outputs]


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
@pytest.mark.parametrize("model", ["resnet", "ppocr_cls"])
def test_threads_change_no_byte(project: Project, target: str, model: str) -> None:
    """A pool, and a build without any thread code."""
    text = (ROOT / "models" / f"{model}.yaml").read_text()
    (project.folder / f"models/{model}_alone.yaml").write_text(f"{text}threads: none\n")
    project.make(f"target={target}", f"model={model},{model}_alone", "test", "-j2")
    pooled, alone = project.bundle(target, model), project.bundle(target, f"{model}_alone")
    assert "kiln_threads_pthread.o" in _members(pooled.library)
    assert "kiln_threads_none.o" in _members(alone.library)
    needed = subprocess.run(
        ["nm", "-u", str(alone.library)], check=True, capture_output=True, text=True
    ).stdout
    assert "pthread" not in needed and "sem_" not in needed and "futex" not in needed
    runs = [vector.inputs for vector in pooled.vectors()]
    outputs = [project.outputs(target, name, runs) for name in (model, f"{model}_alone")]
    assert _bytes(outputs[0]) == _bytes(outputs[1])


TWO = """
#include <stdio.h>
#include <string.h>

#include "resnet.h"
#include "small.h"

#define LARGER(a, b) ((a) > (b) ? (a) : (b))

/* The arena holds nothing between runs, so both models may have the same one. */
static _Alignas(64) unsigned char arena[LARGER(RESNET_ARENA_BYTES, SMALL_ARENA_BYTES)];
static int8_t image[RESNET_INPUT_0_ELEMENTS], scores[RESNET_OUTPUT_0_ELEMENTS];
static float line[SMALL_INPUT_0_ELEMENTS], turned[SMALL_OUTPUT_0_ELEMENTS];

static int load(const char *name, void *data, size_t bytes) {
    FILE *file = fopen(name, "rb");
    size_t got = file ? fread(data, 1, bytes, file) : 0;
    return file && !fclose(file) && got == bytes;
}

int main(void) {
    kiln_session first, second;
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    if (!load("image", image, sizeof image) || !load("line", line, sizeof line))
        return 1;
    if (kiln_open(&first, &resnet, &config) || kiln_open(&second, &small, &config))
        return 2;
    for (int round = 0; round < 3; round++) {
        memset(arena, 0xa5, sizeof arena);
        if (resnet_run(&first, image, scores) || small_run(&second, line, turned))
            return 3;
    }
    if (resnet_run(&second, image, scores) != KILN_WRONG_MODEL)
        return 4;
    FILE *out = fopen("out", "wb");
    size_t written = fwrite(scores, 1, sizeof scores, out) + fwrite(turned, 1, sizeof turned, out);
    return fclose(out) || written != sizeof scores + sizeof turned;
}
"""


@pytest.mark.parametrize(
    "name", ["x86_64", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("aarch64", "armv7"))]
)
@pytest.mark.heavy
def test_two_models_in_one_program(project: Project, tmp_path: Path, name: str) -> None:
    """Two models in one program share the runtime and an arena, and neither disturbs the other."""
    models = ("resnet", "small")
    write_small_network(project.folder / "small.onnx")
    (project.folder / "models/small.yaml").write_text("source: {kind: file, path: ../small.onnx}\n")
    project.make(f"target={name}", f"model={','.join(models)}", "-j2")
    bundles = [project.bundle(name, model) for model in models]
    target = load_target(name)
    (tmp_path / "two.c").write_text(TWO)
    program = link(
        target,
        [tmp_path / "two.c"],
        ["-O2", "-Wall", "-Wextra", "-Werror", *link_flags(target, "pthread")],
        tmp_path / "two",
        include=[bundle.include for bundle in bundles],
        libraries=[bundle.library for bundle in bundles],
    )
    vectors = [bundle.vectors()[0] for bundle in bundles]
    for file, vector in zip(("image", "line"), vectors, strict=True):
        (tmp_path / file).write_bytes(vector.inputs[0].tobytes())
    send = {file: tmp_path / file for file in ("image", "line")}
    done = runner_for(target).run(program, [], send=send, fetch={"out": tmp_path / "out"}, timeout=120)
    assert done.status == 0, done.stderr
    alone = [
        project.outputs(name, model, [vector.inputs])[0][0]
        for model, vector in zip(models, vectors, strict=True)
    ]
    assert (tmp_path / "out").read_bytes() == alone[0].tobytes() + alone[1].tobytes()
