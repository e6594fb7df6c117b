"""C code for one call of an operator with a C body: the user's file, and a kernel that calls its function.

The function is a kernel of the plan: pointers to the inputs, the outputs and the scratch memory, then dynamic
sizes as int32. Values that are known at build time are constants in the kernel, which the compiler sees.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kiln.operators.declaration import OwnTensor
from kiln.operators.registry import LoadedOperator

PREFIX = "kiln_own:"  # of the symbol of a call in a graph; the rest is an OwnCall as JSON
_INT32 = 1 << 31
_NAMED = {"bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float"}
_NAMED |= {"float64": "double"}


@dataclass(frozen=True)
class OwnCall:
    """One call of an operator with a body in C.

    operator: its name. file: path of the C file below the folder of the build. function, declared: the C
    function that the user wrote, and how it must be declared. symbol: the kernel that `source` defines.
    scratch: bytes.
    """

    operator: str
    file: str
    function: str
    declared: str
    symbol: str
    source: str
    scratch: int

    def text(self) -> str:
        """The call as the name of an extern function."""
        return PREFIX + json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> OwnCall:
        """The call that `text` returned."""
        return cls(**json.loads(text.removeprefix(PREFIX)))


def c_type(dtype: str) -> str:
    """The C type of an element; 16-bit floats are their bits."""
    return _NAMED.get(dtype, f"{dtype}_t")


def own_call(
    loaded: LoadedOperator,
    inputs: Sequence[OwnTensor | None],
    outputs: Sequence[OwnTensor],
    values: Sequence[Any],
    scratch: int,
) -> OwnCall:
    """The call with these tensors; `values`: the arguments after the pointers, None for a dynamic size.

    Raises KilnError for a value that C has no type for.
    """
    kernel: list[str] = []
    passed: list[str] = []
    declared: list[str] = []
    tables: list[str] = []
    for index, tensor in enumerate(inputs):
        name = loaded.input_name(index)
        declared.append(f"const {c_type(tensor.dtype if tensor else 'float32')} *{name}")
        passed.append(f"a{len(kernel)}" if tensor else "0")
        if tensor:
            kernel.append(f"const {c_type(tensor.dtype)} *a{len(kernel)}")
    for index, tensor in enumerate(outputs):
        declared.append(f"{c_type(tensor.dtype)} *out{index}")
        passed.append(f"a{len(kernel)}")
        kernel.append(f"{c_type(tensor.dtype)} *a{len(kernel)}")
    if scratch:
        declared.append("uint8_t *scratch")
        passed.append(f"a{len(kernel)}")
        kernel.append(f"uint8_t *a{len(kernel)}")
    for index, value in enumerate(values):
        if value is None:
            declared.append(f"int32_t n{index}")
            passed.append(f"a{len(kernel)}")
            kernel.append(f"int32_t a{len(kernel)}")
            continue
        kind, text, table = _constant(loaded, index, value)
        declared.append(f"{kind}n{index}")
        passed.append(text)
        tables += table
    shown = f"void {loaded.function}({', '.join(declared)})"
    lines = [
        "#include <stdint.h>",
        f"static {shown};",
        f'#line 1 "{loaded.c_file}"',
        str(loaded.source),
        f'#line 1 "{loaded.file}"',
        f"void SYMBOL({', '.join(kernel)});",
        f"void SYMBOL({', '.join(kernel)}) {{",
        *(f"    {line}" for line in tables),
        f"    {loaded.function}({', '.join(passed)});",
        "}",
        "",
    ]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    stem = re.sub(r"[^a-z0-9]+", "_", loaded.operator.name.lower()).strip("_")
    symbol = f"kilno_{stem}_{digest}"
    source = "\n".join([*lines[:5], *(line.replace("SYMBOL", symbol) for line in lines[5:])])
    return OwnCall(loaded.operator.name, loaded.c_file, loaded.function, shown, symbol, source, scratch)


def _constant(loaded: LoadedOperator, index: int, value: Any) -> tuple[str, str, list[str]]:
    """A value as C: the parameter's type, the expression, and definitions before it. Raises KilnError."""
    if isinstance(value, str):
        return "const char *", _text(value), []
    if isinstance(value, (list, tuple, np.ndarray)):
        items = list(np.asarray(value).reshape(-1).tolist())
        kind = "float" if any(isinstance(item, float) for item in items) else "int32_t"
        written = [_number(loaded, float(item) if kind == "float" else item) for item in items]
        table = f"static const {kind} t{index}[] = {{{', '.join(written) or '0'}}};"
        return f"const {kind} *", f"t{index}", [table]
    kind = "float " if isinstance(value, (float, np.floating)) else "int32_t "
    return kind, _number(loaded, value), []


def _number(loaded: LoadedOperator, value: Any) -> str:
    """A number as C. Raises KilnError for a value that is not a number, and for an integer beyond 32 bits."""
    if isinstance(value, (float, np.floating)):
        number = float(np.float32(value))
        if math.isnan(number):
            return '__builtin_nanf("")'
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}__builtin_inff()"
        return f"{number.hex()}f"
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        if not -_INT32 < int(value) < _INT32:
            raise loaded.error(f"arguments returns {value}, allowed: integers of 32 bits")
        return str(int(value))
    raise loaded.error(f"arguments returns {value!r}, allowed: int, float, str, and lists of int or float")


def _text(value: str) -> str:
    """A text as a C literal: every byte that is not a letter, digit, space or _ is escaped."""
    safe = [chr(b) if (chr(b).isalnum() and b < 128) or b in b" _" else f"\\{b:03o}" for b in value.encode()]
    return f'"{"".join(safe)}"'
