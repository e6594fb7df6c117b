"""CONTRIBUTING.md: the examples do what the page says; LICENSE and pyproject.toml agree."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import kiln
import numpy as np
import onnx
import pytest
import tvm
import yaml
from kiln import files
from kiln.__main__ import main
from kiln.config import load_target
from kiln.frontend.importer import import_model
from kiln.frontend.onnx import ops
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.kernels import families
from kiln.kernels.cpu import batch_matmul
from kiln.stage import Stage
from kiln.stages import STAGES, target
from relaxed import virtual_machine

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
    nearest = yaml.safe_load((ROOT / "targets/aarch64.yaml").read_text(encoding="utf-8"))
    changed = yaml.safe_load(example("A target", "yaml"))
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


def test_a_kernel_family() -> None:
    names: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n" + textwrap.dedent(example("A kernel family", "python")), names
    )
    given, shipped = (
        [name.strip("_") for name in function.__code__.co_varnames[: function.__code__.co_argcount]]
        for function in (names["applies"], batch_matmul.applies)
    )
    assert given == shipped
    assert batch_matmul.applies in [family.applies for family in families.FAMILIES]


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
