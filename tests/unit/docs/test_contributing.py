"""CONTRIBUTING.md: the examples do what the page says; LICENSE and pyproject.toml agree."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import types
from pathlib import Path
from typing import Any

import kiln
import numpy as np
import onnx
import pytest
import tvm
import yaml
from conformance.lowered import Compiled, runnable
from kiln import files
from kiln.__main__ import main
from kiln.config import load_target
from kiln.frontend.importer import import_model
from kiln.frontend.onnx import ops
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.kernels import families
from kiln.stage import Stage
from kiln.stages import STAGES, target
from relaxed import module, virtual_machine
from tvm.relax import op

ROOT = Path(kiln.__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def examples(heading: str, language: str) -> list[str]:
    """The blocks in `language` below a heading."""
    section = re.split(r"^## ", PAGE.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def example(heading: str, language: str) -> str:
    """The first block in `language` below a heading."""
    return examples(heading, language)[0]


def test_a_target(tmp_path: Path) -> None:
    [copied] = re.findall(r"copy `(targets/\w+\.yaml)`", PAGE)
    nearest = yaml.safe_load((ROOT / copied).read_text(encoding="utf-8"))
    changed = yaml.safe_load(example("A target", "yaml"))
    # A variant with the same features, and an emulator without them, would stop the build and its test.
    assert not nearest["variants"] and "emulator" in changed
    assert changed.keys() <= nearest.keys()
    path = tmp_path / "my_board.yaml"
    path.write_text(yaml.safe_dump({**nearest, **changed}), encoding="utf-8")
    target = load_target(path)
    assert (target.name, target.cpu, target.vector.dot) == ("my_board", "cortex-a55", "sdot")


def test_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "OVERRIDES", dict(ops.OVERRIDES))
    exec(compile("from __future__ import annotations\n" + example("An operator", "python"), "page", "exec"),
         vars(ops).copy())  # fmt: skip
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,8] x) => (float[2,8] y) { y = Celu<alpha=0.5>(x) }"""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    module, _ = import_model(path, ImportOptions("m"))
    machine = virtual_machine(module)
    x = np.linspace(-4, 4, 16, dtype=np.float32).reshape(2, 8)
    [want] = open_reference(path).run([x])
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), want, rtol=1e-6, atol=1e-6)


def test_a_kernel_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, line = examples("A kernel family", "python")
    rows_product = types.ModuleType("rows_product")
    exec(compile(code, "page", "exec"), vars(rows_product))
    [family] = eval(f"[{line}]", {"Family": families.Family, "rows_product": rows_product})
    monkeypatch.setattr(families, "FAMILIES", [family, *families.FAMILIES])
    shapes = [(3, 5), (5, 7), (4, 17), (17, 33), (3, 7)]
    inputs = [np.random.default_rng(1).uniform(-1, 1, shape).astype("f4") for shape in shapes]

    def body(a: Any, b: Any, c: Any, d: Any, residual: Any) -> list[Any]:
        return [op.nn.relu(op.add(op.matmul(a, b), residual)), op.matmul(c, d)]

    compiled = Compiled(module([(shape, "float32") for shape in shapes], body), runnable("host"), tmp_path)
    assert compiled.families == ["rows_product"] * 2
    a, b, c, d, residual = inputs
    for got, want in zip(compiled.load().run(inputs), [np.maximum(a @ b + residual, 0), c @ d], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "names", Stage)  # removed when the test ends
    declaration, function, declared = examples("A stage", "python")
    module = types.ModuleType("kiln.report.names")
    more = {"atomic_write": files.atomic_write, "read_json": files.read_json, "__name__": module.__name__}
    vars(module).update({**vars(target), **more})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for text in (declaration, function):
        exec(compile("from __future__ import annotations\n" + text, "page", "exec"), vars(module))
    files.write_json(tmp_path / "plan.json", {"kernels": [{"symbol": "one"}, {"symbol": "two"}]})
    out = tmp_path / "names.txt"
    assert main(["names", "--plan", str(tmp_path / "plan.json"), "--out", str(out)]) == 0
    assert out.read_text() == "one\ntwo\n"
    assert ast.parse(declared)


def test_the_licence() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert (
        hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )
    assert re.search(r'^license = "Apache-2\.0"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
