"""XNNPACK: convolutions and dense layers of every kind, of dynamic sizes, in several sessions at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_programs import need, run
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper

from .building import Project

# Sizes that divide into nothing; XNNPACK reads 16 bytes after pixels of 3 and of 70 channels.
YAML = """
source: {kind: file, path: ../mixed.onnx}
format: onnx
dims:
  batch: {min: 1, max: 3}
  high: {min: 9, max: 21}
inputs:
  x: {shape: [batch, 3, high, 13]}
byoc: xnnpack
"""
KEYS = [
    "conv2d batchxhigh//2x7x70 1x1x70x70 bias residual relu",
    "conv2d batchxhigh//2x7x70 3x3x1x70 g70 p2x2x2x2 d2x2 bias relu",
    "conv2d batchxhigh//2x7x70 3x3x35x70 g2 p1x1x1x1",
    "conv2d batchxhighx13x3 3x3x3x70 p0x1x1x1 s2x2 bias clip",  # the caller's own tensor
    "dense batchx70 70x10 bias",
]
# Four threads with a session each; every run of each must be like the first of the first.
THREADS = """
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "mixed.h"
enum { BATCH = 2, HIGH = 10, RUNS = 200 };
static _Alignas(64) unsigned char arenas[4][(MIXED_ARENA_BYTES + 63) / 64 * 64];
static float x[4][BATCH * 3 * HIGH * 13], y[4][BATCH * 10], right[4][BATCH * 10];
static void *work(void *at) {
    const int i = *(const int *)at;
    kiln_session session;
    kiln_config config = {.arena = arenas[i], .arena_bytes = sizeof arenas[i]};
    if (kiln_open(&session, &mixed, &config) != KILN_OK)
        return "kiln_open";
    for (int run = 0; run < RUNS; run++) {
        if (mixed_run(&session, BATCH, HIGH, x[i], y[i]) != KILN_OK)
            return "mixed_run";
        if (memcmp(y[i], right[i], sizeof y[i]) != 0)
            return "other results";
    }
    return NULL;
}
int main(void) {
    kiln_session session;
    kiln_config config = {.arena = arenas[0], .arena_bytes = sizeof arenas[0]};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < BATCH * 3 * HIGH * 13; j++)
            x[i][j] = (float)((j * 31 + i * 7) % 17) / 8;
    /* Two sizes of the same operators, before they are used at once. */
    for (int i = 0; i < 4; i++)
        if (kiln_open(&session, &mixed, &config) != KILN_OK ||
            mixed_run(&session, 1, 9, x[i], y[i]) != KILN_OK ||
            mixed_run(&session, BATCH, HIGH, x[i], right[i]) != KILN_OK)
            return 1;
    pthread_t threads[4];
    int numbers[4];
    for (int i = 0; i < 4; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, work, &numbers[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *said;
        pthread_join(threads[i], &said);
        puts(said == NULL ? "ok" : (const char *)said);
    }
    return 0;
}
"""


def write_network(path: Path) -> None:
    weights = normal(
        7, 0.2,
        k1=(70, 3, 3, 3), k2=(70, 1, 3, 3), k3=(70, 35, 3, 3), k4=(70, 70, 1, 1), k5=(70, 10),
        b1=(70,), b2=(70,), b4=(70,), b5=(10,),
    )  # fmt: skip
    limits = {"low": np.array(-1, "float32"), "high": np.array(2, "float32")}
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k1", "b1"], ["a"], pads=[0, 1, 1, 1], strides=[2, 2]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("Conv", ["b", "k2", "b2"], ["c"], pads=[2, 2, 2, 2], dilations=[2, 2], group=70),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "k3"], ["e"], pads=[1, 1, 1, 1], group=2),
        node("Conv", ["e", "k4", "b4"], ["f"]),
        node("Add", ["f", "e"], ["g"]),
        node("Relu", ["g"], ["h"]),
        node("GlobalAveragePool", ["h"], ["i"]),
        node("Flatten", ["i"], ["j"]),
        node("Gemm", ["j", "k5", "b5"], ["y"]),
    ]
    save_network(path, nodes, {"x": ["batch", 3, "high", 13]}, {"y": ["batch", 10]}, {**weights, **limits})


@pytest.fixture
def built(at_home: Project) -> Path:
    write_network(at_home.folder / "mixed.onnx")
    (at_home.folder / "models" / "mixed.yaml").write_text(YAML, encoding="utf-8")
    at_home.make("target=x86_64", "model=mixed", "test")
    return at_home.build


def test_every_kind_agrees_with_the_reference(built: Path, tmp_path: Path) -> None:
    results = read_json(built / ".stages" / "x86_64" / "mixed" / "test.json")
    assert all(o["error"] <= o["limit"] for vector in results["vectors"] for o in vector["outputs"])
    bundle = built / "x86_64" / "mixed"
    (library,) = read_json(bundle / "manifest.json")["libraries"]
    assert (library["backend"], library["subgraphs"]) == ("xnnpack", KEYS)
    assert library["licence"] == "BSD-3-Clause AND MIT AND BSD-2-Clause"
    assert (bundle / "licences" / "xnnpack.txt").read_text().count("Upstream-Name: XNNPACK") == 1

    # The same in several threads, linked as a user's own program is.
    source, program = tmp_path / "threads.c", tmp_path / "threads"
    source.write_text(THREADS)
    libraries = [str(bundle / "lib" / name) for name in ("libmixed.a", *library["link"])]
    run([need("gcc"), "-O2", "-Wall", "-Werror", f"-I{bundle / 'include'}", str(source), *libraries,
         "-pthread", f"-Wl,-rpath,{bundle / 'lib'}", "-o", str(program)])  # fmt: skip
    assert run([str(program)]).splitlines() == ["ok"] * 4


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
def test_a_network_agrees_with_the_reference(project: Project, target: str) -> None:
    if target == "aarch64" and not Path("/sys/devices/system/cpu/present").is_file():
        pytest.skip("XNNPACK on ARM asks /sys for the processors, and /sys is not mounted here")
    project.make(f"target={target}", "model=mobilenet_v2", "byoc=xnnpack", "test", "-j2")
    results = read_json(project.build / ".stages" / target / "mobilenet_v2" / "test.json")
    assert all(o["error"] <= o["limit"] for vector in results["vectors"] for o in vector["outputs"])
    (library,) = read_json(project.build / target / "mobilenet_v2" / "manifest.json")["libraries"]
    assert len(library["subgraphs"]) >= 30
