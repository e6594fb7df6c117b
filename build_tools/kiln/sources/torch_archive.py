"""Inputs and dynamic dimensions of an archive of torch.export (.pt2), read without PyTorch.

The archive is a ZIP file. Its `models/model.json`, before PyTorch 2.8 `serialized_exported_program.json`,
contains the graph's signature, the shapes of all tensors as SymPy expressions, and the ranges of their
symbols (torch/_export/serde/schema.py in PyTorch's source). `extra/kiln.json`, which the stage `trace` adds,
contains the names that torch.export.Dim gave to the symbols.
"""

from __future__ import annotations

import ast
import contextlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from kiln.config.sizes import SizeExpr, joined, substituted
from kiln.config.sizes import names as names_in
from kiln.errors import KilnError
from kiln.file_kinds import kind_of

PACKAGES = ("torch", "onnxscript")
TRACED = "traced.pt2"  # among the files of a model between the stages, the archive of its Python function
NAMES = "kiln.json"  # extra file of an archive: {"dims": {symbol: name}}
_PROGRAMS = ("models/model.json", "serialized_exported_program.json")
_COMPLEX = (9, 10, 11)  # of schema.ScalarType
_MOST_BYTES = 1 << 28  # of one JSON file; the graph of a network with 10,000 operators takes 20 MB
_OPERATORS = {
    "Add": "+",
    "Mul": "*",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "Max": "max",
    "Min": "min",
}
_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}


@dataclass(frozen=True)
class Archive:
    """The inputs of an exported program.

    inputs: shapes by name, in order, with one entry per axis: a size, a symbol's name, or a size expression
    of symbols (kiln.config.sizes). ranges: by symbol, the least and the greatest size; None: no greatest
    size. names: by symbol, the name that the exporting program gave to the dimension, where it is known.
    """

    inputs: dict[str, tuple[SizeExpr, ...]]
    ranges: dict[str, tuple[int, int | None]]
    names: dict[str, str] = field(default_factory=dict)


def read_archive(path: Path) -> Archive:
    """Read the inputs of the archive `path`.

    Raises KilnError, one line, for a file that is not an archive of torch.export, and for an input that is
    neither a tensor nor a constant.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program = _member(archive, _PROGRAMS)
            names = _member(archive, (f"extra/{NAMES}", f"extra_files/{NAMES}"))
    except (
        OSError,
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        RecursionError,
    ) as error:
        kind = _kind_of(path)
        raise KilnError(
            f"{path}: not an archive of torch.export: {error if kind is None else f'the file is {kind}'}"
        ) from error
    if program is None:
        kind = _kind_of(path) or "without an exported program; torch.export.save writes one"
        raise KilnError(f"{path}: not an archive of torch.export: the file is {kind}")
    try:
        return _read(path, program, {} if names is None else names["dims"])
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError) as error:
        raise KilnError(
            f"{path}: an archive of torch.export in an unknown format ({type(error).__name__}: {error}); "
            "write it again with the PyTorch that is installed here"
        ) from error


def _kind_of(path: Path) -> str | None:
    """The kind of a file that is not an archive of torch.export; None: unknown, or it cannot be read."""
    try:
        kind = kind_of(path)
    except OSError:
        return None
    return None if kind is None or kind.startswith("an archive of torch.export") else kind


def _member(archive: zipfile.ZipFile, names: tuple[str, ...]) -> Any:
    """The content of the first JSON file whose path, without the archive's top folder, is one of `names`."""
    for info in archive.infolist():
        if info.filename.partition("/")[2] in names or info.filename in names:
            if info.file_size > _MOST_BYTES:
                raise ValueError(f"{info.filename} has {info.file_size} bytes, allowed: {_MOST_BYTES}")
            return json.loads(archive.read(info))
    return None


def _read(path: Path, program: Mapping[str, Any], names: Mapping[str, str]) -> Archive:
    module = program["graph_module"]
    tensors = module["graph"]["tensor_values"]
    inputs: dict[str, tuple[SizeExpr, ...]] = {}
    for spec in module["signature"]["input_specs"]:
        argument = spec.get("user_input", {}).get("arg", {})
        kind = next(iter(argument), None)
        if kind == "as_tensor":
            name = str(argument[kind]["name"])
            _check_real(path, f"input '{name}'", tensors[name])
            inputs[name] = tuple(_size(size) for size in tensors[name]["sizes"])
        elif kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            raise KilnError(
                f"{path}: input {len(inputs)} is a number that varies; export the module with a constant "
                "there, or with a tensor"
            )
    for spec in module["signature"].get("output_specs", []):
        argument = spec.get("user_output", {}).get("arg", {})
        if "as_tensor" in argument:
            _check_real(path, "an output", tensors[argument["as_tensor"]["name"]])
    ranges = {}
    for symbol, limits in program["range_constraints"].items():
        if symbol.isidentifier():
            least, most = limits["min_val"], limits["max_val"]
            ranges[symbol] = (max(0, int(least or 0)), None if most is None or most >= 1 << 62 else int(most))
    return _joined(Archive(inputs, ranges, {str(key): str(value) for key, value in names.items()}))


def _joined(archive: Archive) -> Archive:
    """`archive` with one symbol for each name: torch.export may keep several for axes of one Dim."""
    first: dict[str, str] = {}
    for symbol in archive.ranges:
        if symbol in archive.names:
            first.setdefault(archive.names[symbol], symbol)
    kept = {symbol: first.get(archive.names.get(symbol, ""), symbol) for symbol in archive.ranges}
    ranges: dict[str, tuple[int, int | None]] = {}
    for symbol, (least, most) in archive.ranges.items():
        other, bound = ranges.get(kept[symbol], (0, None))
        limits = [limit for limit in (most, bound) if limit is not None]
        ranges[kept[symbol]] = max(least, other), min(limits, default=None)
    inputs = {
        name: tuple(substituted(size, {key: kept.get(key, key) for key in names_in(size)}) for size in shape)
        for name, shape in archive.inputs.items()
    }
    return Archive(inputs, ranges, {key: name for key, name in archive.names.items() if key in ranges})


def _check_real(path: Path, name: str, tensor: Mapping[str, Any]) -> None:
    """Raise KilnError for a tensor of complex numbers, which no input or output of a bundle can be."""
    if tensor.get("dtype") in _COMPLEX:
        raise KilnError(
            f"{path}: {name} has complex numbers; let the module take and return torch.view_as_real of "
            "them, and call torch.view_as_complex inside"
        )


def _size(size: Mapping[str, Any]) -> SizeExpr:
    if "as_int" in size:
        return int(size["as_int"])
    return _expression(ast.parse(size["as_expr"]["expr_str"], mode="eval").body)


def _expression(node: ast.expr) -> SizeExpr:
    """The size expression of a parsed SymPy expression. Raises ValueError for other operators.

    SymPy prints `2*s0` in archives of older versions, `Mul(Integer(2), Symbol('s0'))` in others.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return node.id
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        return -int(node.operand.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return joined(_BINARY[type(node.op)], _expression(node.left), _expression(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        first = node.args[0]
        if node.func.id in ("Symbol", "Integer") and isinstance(first, (ast.Constant, ast.UnaryOp)):
            return ast.literal_eval(first)
        if node.func.id in _OPERATORS:
            operands = [_expression(operand) for operand in node.args]
            result = operands[0]
            for operand in operands[1:]:
                result = joined(_OPERATORS[node.func.id], result, operand)
            return result
    raise ValueError(f"the size {ast.unparse(node)}")


def versions() -> str:
    """The installed versions of PyTorch and its ONNX exporter, such as `torch=2.13.0 onnxscript=0.7.2`."""
    installed = []
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed.append(f"{package}={metadata.version(package)}")
    return " ".join(installed) or "none"
