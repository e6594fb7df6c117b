"""Every key of a target, a device and a model is read by something: a key without effect misleads."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest
from kiln.config import slice_records
from kiln.config.device import Device
from kiln.config.model import Model
from kiln.config.target import Target
from pydantic import BaseModel
from scons_real import ROOT
from syntax import nodes

PACKAGE = ROOT / "build_tools/kiln"
SLICES = {name for name in vars(slice_records) if name.endswith("Config")}
TYPED = {"CCompiler", "Cache", "Emulator", "Libc", "Vector"}
# Read by the configuration itself, before a stage sees them: methods of the same class, or `getattr`. Those
# of Budget are read by kiln.report.budget, which makes their names from a kind of memory.
OWN = {
    ("Budget", "flash_bytes"), ("Budget", "ram_bytes"),
    ("Bucket", "range"), ("Tolerance", "fp16"), ("Tolerance", "bf16"), ("Tolerance", "tf32"),
    ("Variant", "tuned_for"), ("Variant", "emulator"), ("Region", "holds"), ("Region", "origin"),
    ("Region", "cost"), ("Region", "reserve"), ("Byoc", "take"), ("Byoc", "leave"),
    ("Byoc", "backends"),
}  # fmt: skip


def sections(annotation: object) -> Iterator[type[BaseModel]]:
    """The section classes that a type is made of."""
    for part in typing.get_args(annotation):
        yield from sections(part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def keys(section: type[BaseModel], parent: str) -> Iterator[tuple[str, str, str]]:
    """(class, name of the key that holds it, key), of a section and of all sections inside it."""
    for name, value in section.model_fields.items():
        yield section.__name__, parent, name
        for inner in sections(value.annotation):
            if inner is not section:
                yield from keys(inner, name)


@dataclass
class Function:
    """The names in a function: attributes that it reads, as (base, attribute), types of arguments, others."""

    reads: set[tuple[str, str]] = field(default_factory=set)
    types: dict[str, str] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def read_function(tree: ast.AST) -> Function:
    """A function in short."""
    found = Function()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.reads.add((_name(node.value), node.attr))
        elif isinstance(node, ast.arg) and node.annotation is not None:
            found.types[node.arg] = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            found.others += [(_name(target), _name(node.value)) for target in node.targets]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
    return found


@cache
def functions() -> dict[str, list[Function]]:
    """The functions of the package, without those in the folder config, by each key that they may read."""
    found: dict[str, list[Function]] = {}
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "config" in path.parents:
            continue
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.FunctionDef):
                function = read_function(node)
                for key in function.texts | {attribute for _, attribute in function.reads}:
                    found.setdefault(key, []).append(function)
    return found


def is_read(owner: str, parent: str, key: str, where: list[Function]) -> bool:
    """Whether a function reads `….parent.key`, or the key of a variable that is the section.

    Stages get some sections as JSON: there `"key"` is a reading too. Names alone say less, so sections that
    are always typed are looked at strictly. Stages read the keys of a model from the record of their slice.
    """
    owners = {owner, *(SLICES if owner == "Model" else ())}
    for function in where:
        if owner not in TYPED and key in function.texts:
            return True
        names = {parent, *(name for name, kind in function.types.items() if owners & set(kind.split(" | ")))}
        names |= {name for name, value in function.others if value in names}
        if any((name, key) in function.reads for name in names):
            return True
    return False


def test_reading_is_seen() -> None:
    text = (
        "def f(target):\n    c = target.cache\n    return c.l2\n"
        "def g(one: Cache):\n    return one.l1d\ndef h(target):\n    return target.cache.l3, other.line\n"
    )
    where = [read_function(node) for node in ast.parse(text).body]
    found = [key for key in ("l1d", "l2", "l3", "line") if is_read("Cache", "cache", key, where)]
    assert found == ["l1d", "l2", "l3"]


@pytest.mark.parametrize(("section", "name"), [(Target, "target"), (Device, "device"), (Model, "model")])
def test_every_key_is_read(section: type[BaseModel], name: str) -> None:
    unread = [
        (owner, key)
        for owner, parent, key in dict.fromkeys(keys(section, name))
        if (owner, key) not in OWN and not is_read(owner, parent, key, functions().get(key, []))
    ]
    assert unread == []
