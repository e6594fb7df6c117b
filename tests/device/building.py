"""A user's own project outside of the tree, built by scons with every real stage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import forked
import numpy as np
from kiln.arrays import Array
from kiln.config import load_target
from kiln.device.bundle import Bundle, open_bundle
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners import runner_for
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper
from scons_real import ROOT, lean_targets, shared_cache


class Project:
    """A folder with models/ and targets/ of its own; a session's tests share its build/.

    `variants`: whether shipped targets keep their variants.
    """

    def __init__(self, folder: Path, *, variants: bool = False) -> None:
        self.folder = folder
        self.build = folder / "build"
        for name in ("models", "targets"):
            (folder / name).mkdir()
        if not variants:
            lean_targets(folder / "targets")

    def command(self, *arguments: str) -> list[str]:
        """The command of a build by SCons, as the wrapper calls it."""
        return [sys.executable, "-m", "SCons", "-Q", "-f", str(ROOT / "SConstruct"), *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a build."""
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {**inherited, **more}

    def scons(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Build, with `more` in the environment; stages come from the cache that all tests share.

        The build runs in a fork of a process that all tests share, unless `more` changes PYTHONPATH.
        """
        words = [*arguments, *shared_cache(arguments)]
        if "PYTHONPATH" not in more:
            return forked.run_scons(self.command(*words)[3:], self.folder, self.environment(**more))
        return self.run(self.command(*words), **more)

    def run(self, command: Sequence[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder, in a process of its own, with `more` in the environment."""
        return subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=3000,
        )

    def make(self, *arguments: str) -> str:
        """Build; returns the output. The build must succeed and print nothing on stderr."""
        done = self.scons(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    def bundle(self, target: str, model: str) -> Bundle:
        """A finished bundle."""
        return open_bundle(self.build / target / model)

    def outputs(self, target: str, model: str, vectors: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """The outputs of a finished bundle for each of `vectors`, computed on its target's runner."""
        bundle, chosen = self.bundle(target, model), load_target(target)
        entries = read_json(bundle.folder / "manifest.json")["outputs"]
        program = bundle.link_program(chosen, self.folder / "work" / target / model)
        dtypes = [entry["dtype"] for entry in entries]
        return execute(BundleProgram(bundle, program, runner_for(chosen)), vectors, dtypes).outputs


def write_small_network(
    path: Path, channels: int = 5, groups: int = 1, axes: int = 2, **changes: str
) -> Path:
    """An ONNX file with fixed shapes and sizes that divide into nothing: two convolutions, a sum, a softmax.

    `groups`: of the second convolution, as many as channels for a depthwise one. `axes`: of the result, 2 or
    more. `changes` replaces operators by name: `Relu="Frobnicate"`.
    """
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], name="first"),
        helper.make_node(changes.get("Relu", "Relu"), ["a"], ["b"], name="activation"),
        helper.make_node("Conv", ["b", "k2"], ["c"], pads=[1, 1, 1, 1], group=groups, name="second"),
        helper.make_node("Add", ["c", "b"], ["d"], name="residual"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="mean"),
        helper.make_node("Flatten", ["e"], ["f"], name="flat"),
        helper.make_node("Softmax", ["f"], ["y" if axes == 2 else "g"], name="scores"),
    ]
    weights = normal(3, 0.4, k1=(channels, 3, 3, 3), b1=(channels,), k2=(channels, channels // groups, 3, 3))
    result = [*[1] * (axes - 1), channels]
    if axes > 2:
        weights["shape"] = np.array(result, "int64")
        nodes.append(helper.make_node("Reshape", ["g", "shape"], ["y"], name="axes"))
    return save_network(path, nodes, {"x": [1, 3, 11, 13]}, {"y": result}, weights)
