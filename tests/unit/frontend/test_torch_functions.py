"""Functions that return PyTorch models: what is told of those that cannot be called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.frontend.torch.export_stage import _cause_of
from kiln.frontend.torch.library import reason
from kiln.frontend.torch.trace_stage import _call, evaluate, find_function

FUNCTIONS = """
import sys

def needs(x, y=1): return x
def ends(): sys.exit("no weights")
def plain(a=1, *b, **c): return a
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_functions.py").write_text(FUNCTIONS)
    (tmp_path / "own_end.py").write_text("raise SystemExit(3)")
    yield tmp_path
    for name in ("own_functions", "own_end"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("own_functions:needs", "the function is called without arguments: missing a required argument: 'x'"),
        ("own_functions:ends", "the function failed: SystemExit: no weights (.*own_functions.py:5)"),
        ("own_end:function", "cannot import own_end: SystemExit: 3 (.*own_end.py:1)"),
    ],
)
def test_a_function_that_cannot_be_called(folder: Path, name: str, told: str) -> None:
    pattern = told.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(KilnError, match=rf"^{name}: {pattern}$"):
        _call(name, find_function(name))


def test_arguments_with_defaults_are_left_out(folder: Path) -> None:
    assert _call("own_functions:plain", find_function("own_functions:plain")) == 1


def test_an_operator_whose_shapes_the_exporter_cannot_tell_is_named() -> None:
    class UnsupportedOperatorException(RuntimeError):  # noqa: N818 - the name that PyTorch gives it
        pass

    missing = UnsupportedOperatorException("aten.histogram.bin_ct\n\nWhile executing %histogram")
    error = RuntimeError("Failed to decompose the FX graph")
    error.__cause__ = missing
    assert _cause_of(error) == "its exporter does not know the operator aten.histogram.bin_ct"


def test_an_operator_whose_result_python_needs_is_named() -> None:
    class DataDependentOutputException(RuntimeError):  # noqa: N818 - the name that PyTorch gives it
        pass

    told = reason(DataDependentOutputException("aten.equal.default"))
    assert told.startswith(
        "aten.equal.default makes a Python number or a condition of the values of a tensor; "
    )


def test_a_shape_that_depends_on_values_is_told() -> None:
    class DynamicOutputShapeException(RuntimeError):  # noqa: N818 - the names that PyTorch gives them
        pass

    class PendingUnbackedSymbolNotFound(RuntimeError):  # noqa: N818
        pass

    told = reason(DynamicOutputShapeException("aten._ctc_loss.default"))
    assert told.startswith(
        "the shape of a result of aten._ctc_loss.default depends on the values of a tensor"
    )
    told = reason(PendingUnbackedSymbolNotFound("Pending unbacked symbols {u0} not in returned outputs …"))
    assert told.startswith("the shape of a result of an operator depends on the values of a tensor, which")


def test_a_module_that_is_exported_already_has_one_mode() -> None:
    """Those of PT2E quantisation refuse eval(): PyTorch's operators in them are those of one mode."""

    class Part:
        training = True

    class Exported(Part):
        def eval(self) -> None:
            raise NotImplementedError("Calling train() or eval() is not supported for exported models.")

        def modules(self) -> list[Part]:
            return [self, inner]

    inner = Part()
    whole = Exported()
    evaluate(whole)
    assert not whole.training and not inner.training
