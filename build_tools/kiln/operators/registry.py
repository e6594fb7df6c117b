"""Finds the operators of the user: every file `operators/*.py` of the folder in which a model is built."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.config.c_words import can_name_symbol
from kiln.errors import KilnError
from kiln.onnx_domains import domain_name
from kiln.operators.declaration import OwnOperator
from kiln.paths import operator_files

FOLDER = "operators"
DOMAIN = "kiln.own"  # domain of own operators in a graph that is being imported
# How to go on where an operator cannot be imported.
WAY = "an operator of your own can compute it (docs/own-operator.md)"
_TYPES = (int, float, bool, str, bytes)
_MOST_OUTPUTS = 64  # of an operator, for the check of a function that takes them
_BODIES = ("relax", "tir", "c")
_MANY = inspect.Parameter.VAR_POSITIONAL
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class LoadedOperator:
    """An operator of a user and the file that declares it; `source`: the text of its C file, or None."""

    operator: OwnOperator
    file: str
    source: str | None = None

    @property
    def c_file(self) -> str:
        """The C file's path below the folder of the build."""
        return f"{FOLDER}/{self.operator.c}"

    @property
    def function(self) -> str:
        """The C function's name."""
        return self.operator.function or Path(str(self.operator.c)).stem

    @property
    def least_inputs(self) -> int:
        """The number of inputs that every call of the operator has."""
        return sum(
            1
            for parameter in self._inputs()
            if parameter.default is parameter.empty and parameter.kind != _MANY
        )

    @property
    def most_inputs(self) -> int | None:
        """The greatest number of inputs; None: any number."""
        parameters = self._inputs()
        return None if any(parameter.kind == _MANY for parameter in parameters) else len(parameters)

    def input_name(self, index: int) -> str:
        """The name of input `index` as the shape rule calls it."""
        parameters = self._inputs()
        parameter = parameters[min(index, len(parameters) - 1)]
        return f"{parameter.name}{index - len(parameters) + 1}" if parameter.kind == _MANY else parameter.name

    def _inputs(self) -> list[inspect.Parameter]:
        """The parameters of the shape rule that take inputs."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, _MANY)
        parameters = inspect.signature(self.operator.result).parameters.values()
        return [
            parameter
            for parameter in parameters
            if parameter.kind in kinds and parameter.name not in self.operator.attributes
        ]

    def error(self, text: str) -> KilnError:
        """An error of the operator, which names its file."""
        return KilnError(f"{self.file}: operator '{self.operator.name}': {text}")

    def call(self, what: str, function: Callable[..., Any], *given: Any, **attributes: Any) -> Any:
        """Call a function of the user's file. Raises KilnError naming it where it raises anything."""
        try:
            return function(*given, **attributes)
        except Exception as error:  # anything may be wrong in a user's file
            text = " ".join(str(error).split())
            raise self.error(f"{what} ended with {type(error).__name__}: {text}") from error


def files() -> list[Path]:
    """The files that declare operators, sorted. Names that begin with _ are modules of theirs."""
    return [path for path in operator_files(".py") if not path.name.startswith("_")]


def operators() -> list[LoadedOperator]:
    """All operators of the user. Raises KilnError for the first file that does not declare one."""
    operators: dict[tuple[str, str], LoadedOperator] = {}
    for path in files():
        loaded = load(path)
        key = domain_name(loaded.operator.domain), loaded.operator.name
        if key in operators:
            raise loaded.error(f"{operators[key].file} declares an operator of this name and domain too")
        operators[key] = loaded
    return list(operators.values())


def by_key() -> Mapping[tuple[str, str], LoadedOperator]:
    """The operators by (domain, name) of ONNX nodes; "" is ONNX's own domain."""
    return {(domain_name(loaded.operator.domain), loaded.operator.name): loaded for loaded in operators()}


def by_name() -> Mapping[str, LoadedOperator]:
    """The operators by custom code of TFLite files. Raises KilnError if two domains have the same name."""
    named: dict[str, LoadedOperator] = {}
    for loaded in operators():
        name = loaded.operator.name
        if name in named:
            raise loaded.error(
                f"{named[name].file} has the same name in another domain, and a TFLite file has no domains"
            )
        named[name] = loaded
    return named


def load(path: Path) -> LoadedOperator:
    """The operator that a file declares. Raises KilnError, naming the file, where it declares none."""
    shown = f"{FOLDER}/{path.name}"
    spec = importlib.util.spec_from_file_location(f"kiln_operator_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything may be wrong in a user's file
        text = " ".join(str(error).split())
        raise KilnError(f"{shown}: {type(error).__name__}: {text}") from error
    operator = getattr(module, "OPERATOR", None)
    if not isinstance(operator, OwnOperator):
        raise KilnError(f"{shown}: it must define OPERATOR, an OwnOperator of kiln.operators")
    loaded = LoadedOperator(operator, shown)
    _check(loaded)
    if operator.c is None:
        return loaded
    return LoadedOperator(operator, shown, _read(loaded, path.parent / operator.c))


def _check(loaded: LoadedOperator) -> None:
    """Raise KilnError unless the operator's declaration is complete."""
    operator = loaded.operator
    if not isinstance(operator.name, str) or not operator.name or not isinstance(operator.domain, str):
        raise loaded.error("name and domain must be texts, the name not empty")
    for field in ("result", "reference"):
        if not callable(getattr(operator, field)):
            raise loaded.error(f"{field} must be a function")
    bodies = [body for body in _BODIES if getattr(operator, body) is not None]
    if len(bodies) != 1:
        present = f"it has {' and '.join(bodies)}" if bodies else "it has none"
        raise loaded.error(f"one body expected, relax, tir or c: {present}")
    for name, kind in operator.attributes.items():
        item_kind = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
        is_known = item_kind in _TYPES if isinstance(item_kind, type) else _is_value(kind)
        if not is_known:
            raise loaded.error(
                f"attribute '{name}' is {kind!r}, allowed: a default, or int, float, bool, str, bytes, "
                "[int], [float], [str]"
            )
    extra = [key for key in ("function", "arguments") if getattr(operator, key) is not None]
    if operator.c is None and (extra or operator.scratch != 0):
        raise loaded.error(f"'{[*extra, 'scratch'][0]}' is for a body in C, and this one is {bodies[0]}")
    if operator.c is not None and operator.arguments is None:
        raise loaded.error(
            "a body in C needs 'arguments', the values that follow the pointers: sizes and attributes"
        )
    for field in ("result", "reference", "relax", "tir"):
        _check_function(loaded, field, 0)
    for field in ("arguments", "scratch"):
        _check_function(loaded, field, 1)


def _is_value(kind: Any) -> bool:
    items = kind if isinstance(kind, (list, tuple)) else [kind]
    return all(isinstance(item, _TYPES) for item in items)


def _check_function(loaded: LoadedOperator, what: str, outputs: int) -> None:
    """Raise KilnError unless a function takes all inputs, `outputs` or more outputs, and the attributes."""
    function = getattr(loaded.operator, what)
    if not callable(function):
        if function is not None and what != "scratch":
            raise loaded.error(f"{what} must be a function")
        return
    least, most = loaded.least_inputs, loaded.most_inputs
    arguments = [None] * ((least if most is None else most) + outputs)
    signature = inspect.signature(function)
    quants = ["quants"] if what == "reference" and takes_quants(function) else []
    named = dict.fromkeys([*loaded.operator.attributes, *quants])
    # The shape rule alone knows how many outputs there are.
    counts = range(len(arguments), len(arguments) + _MOST_OUTPUTS) if outputs else [len(arguments)]
    if not any(_takes(signature, count, named) for count in counts):
        allowed = ", ".join(
            [f"{len(arguments)} tensors", *(f"{name}=" for name in loaded.operator.attributes)]
        )
        raise loaded.error(f"{what}{signature} cannot be called with {allowed}")
    if any(parameter.kind == _MANY for parameter in signature.parameters.values()):
        return
    if most is None:
        raise loaded.error(f"{what} must take any number of inputs, as result does: *inputs")


def _takes(signature: inspect.Signature, count: int, named: Mapping[str, Any]) -> bool:
    """Whether a function can be called with `count` tensors and keywords."""
    try:
        signature.bind(*[None] * count, **named)
    except TypeError:
        return False
    return True


def takes_quants(reference: Callable[..., Any]) -> bool:
    """Whether a reference wants the quantisation of the tensors."""
    return "quants" in inspect.signature(reference).parameters


def _read(loaded: LoadedOperator, path: Path) -> str:
    """The text of a C file. Raises KilnError where it cannot be the body of the operator."""
    name = loaded.operator.c
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".c"):
        raise loaded.error(f"c is {name!r}, allowed: the name of a C file in {FOLDER}/, such as 'mine.c'")
    if not re.fullmatch(r"[A-Za-z_]\w*", loaded.function) or not can_name_symbol(loaded.function):
        raise loaded.error(f"'{loaded.function}' cannot name a C function: set 'function'")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise loaded.error(f"{FOLDER}/{name}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise loaded.error(f"{FOLDER}/{name}: cannot be read as text: {error}") from None
    included = _INCLUDE.search(text)
    if included is not None:
        raise loaded.error(
            f'{FOLDER}/{name}: it includes "{included[1]}"; a body is one file, which includes only headers '
            "of the compiler, such as <stdint.h>"
        )
    return text


def typed_attributes(loaded: LoadedOperator, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of one node, with defaults. Raises KilnError for an unknown, missing or wrong one."""
    declared = loaded.operator.attributes
    unknown = [name for name in attributes if name not in declared]
    if unknown:
        names = ", ".join(declared) or "none"
        raise loaded.error(f"the model gives an attribute '{unknown[0]}', declared: {names}")
    result = {}
    for name, kind in declared.items():
        is_type = isinstance(kind, type) or (
            isinstance(kind, list) and len(kind) == 1 and isinstance(kind[0], type)
        )
        if name not in attributes:
            if is_type:
                raise loaded.error(f"the model gives no attribute '{name}', which has no default")
            result[name] = kind
            continue
        result[name] = _typed(loaded, name, kind, attributes[name])
    return result


def _typed(loaded: LoadedOperator, name: str, kind: Any, value: Any) -> Any:
    """One attribute's value in its declared type. Raises KilnError."""
    many = isinstance(kind, (list, tuple))
    first = (kind[0] if kind else None) if many else kind
    item_kind = first if isinstance(first, type) else type(first)
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if many == isinstance(value, (list, tuple)):
        typed = [_item(item_kind, item) for item in items]
        if None not in typed:
            return typed if many else typed[0]
    shown = f"[{item_kind.__name__}]" if many else item_kind.__name__
    raise loaded.error(f"attribute '{name}' of the model is {value!r}, declared: {shown}")


def _item(kind: type, value: Any) -> Any:
    """`value` as `kind`, where that loses nothing; else None."""
    if kind is str and isinstance(value, bytes):
        return value.decode(errors="replace")
    if kind is bytes and isinstance(value, str):
        return value.encode()
    if kind is bool and isinstance(value, int) and value in (0, 1):
        return bool(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (type(None), type(value)) or (kind is int and isinstance(value, bool)):
        return value if kind is not int else int(value)
    return None


def check_inputs(loaded: LoadedOperator, inputs: Sequence[Any]) -> None:
    """Raise KilnError for a number of inputs that the operator does not take, and for a missing one."""
    least, most = loaded.least_inputs, loaded.most_inputs
    if len(inputs) < least or (most is not None and len(inputs) > most):
        allowed = str(least) if most == least else f"{least} or more" if most is None else f"{least}..{most}"
        raise loaded.error(f"the model gives it {len(inputs)} inputs, its shape rule takes {allowed}")
    for index in range(least):
        if inputs[index] is None:
            raise loaded.error(f"the model leaves out input {index} ('{loaded.input_name(index)}')")
