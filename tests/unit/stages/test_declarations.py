"""The declarations of stages: a command line and its inverse, and the flags that their functions read."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import kiln
import pytest
from kiln.config import Model
from kiln.scons.server_process import stage_environment
from kiln.stage import POSITIONAL, Field, Output, Slice, Stage
from kiln.stages import STAGES
from syntax import nodes

PACKAGE = Path(kiln.__file__).parent
_RUNS = [STAGES[name].spec.module for name in ("device-run", "device-test", "device-bench", "device-flash")]


def sample(one: Field) -> Any:
    """A value of a flag that differs from its default."""
    if one.type is bool:
        return True
    if get_origin(one.type) is tuple:
        return (Path("a/b"), Path("-a b"))
    if get_origin(one.type) is Literal:
        return get_args(one.type)[-1]
    return 12.5 if one.type is float else one.type("-v")


@functools.cache
def sources() -> list[str]:
    """The texts of all modules that have a parameter `args`."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return [text for text in texts if "args: " in text]


def read_by(stage: type[Stage]) -> set[str]:
    """Attributes of `args` that the modules with this stage, or its base class, as parameter read."""
    names = {cls.__name__ for cls in stage.__mro__ if issubclass(cls, Stage) and cls is not Stage}
    found = set()
    for text in sources():
        if not any(f"args: {name}" in text for name in names):
            continue
        for node in nodes(text):
            if isinstance(node, ast.Attribute):
                owner = node.value
                if getattr(owner, "id", None) == "args" or getattr(owner, "attr", None) == "args":
                    found.add(node.attr)
    return found


def test_stages_that_start_early_import_no_tvm() -> None:
    """Neither stages that start early nor stages that run a finished bundle import TVM."""
    early = [stage.spec.module for stage in STAGES.values() if stage.spec.early]
    assert len(early) > 3
    text = (
        "import importlib, sys\n[importlib.import_module(name) for name in sys.argv[1:]]\nprint(*sys.modules)"
    )
    command = [sys.executable, "-c", text, *early, *_RUNS]
    done = subprocess.run(command, env=stage_environment(), capture_output=True, text=True, check=True)
    assert not {"tvm", "torch"} & set(done.stdout.split())


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
class TestDeclarations:
    """Every stage."""

    def test_a_command_line_is_parsed_to_the_stage_that_wrote_it(self, stage: type[Stage]) -> None:
        exclusive = stage.spec.one_of[1:]
        whole = stage(**{one.name: sample(one) for one in stage.fields() if one.name not in exclusive})
        least = stage(
            **{
                one.name: sample(one)
                for one in stage.fields()
                if one.required or one.name in stage.spec.one_of[:1]
            }
        )
        for run in (whole, least):
            assert stage.parse(run.words()) == run

    def test_its_function_reads_every_flag(self, stage: type[Stage]) -> None:
        assert {one.name for one in stage.fields()} <= read_by(stage)

    def test_names_of_flags_are_distinct(self, stage: type[Stage]) -> None:
        names = [one.flag for one in stage.fields() if one.flag != POSITIONAL]
        assert len(names) == len(set(names)) and "--help" not in names
        assert [one.name for one in stage.fields()] == [one.name for one in fields(stage)]


def test_slices_name_keys_of_a_model_and_are_the_same_wherever_they_are_read() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for stage in STAGES.values():
        for one in stage.fields():
            if isinstance(one.kind, Slice):
                assert set(one.kind.keys) <= set(Model.model_fields)
                assert found.setdefault(one.kind.name, one.kind.keys) == one.kind.keys


def test_declarations_import_no_library() -> None:
    for path in (PACKAGE / "stage.py", *(PACKAGE / "stages").glob("*.py")):
        for node in nodes(path.read_text(encoding="utf-8")):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {str(name).split(".")[0] for name in names} & {"tvm", "numpy", "onnx", "SCons", "yaml"}


def test_help_of_a_flag_does_not_change_the_digest_and_a_declared_file_does() -> None:
    one = Output("text", files=("a",))
    assert repr(one) == repr(Output("another text", files=("a",))) != repr(Output("text", files=("b",)))
