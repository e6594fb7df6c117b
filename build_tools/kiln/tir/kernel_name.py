"""Names of kernels from their code: equal kernels of two buckets or two models get the same symbol.

Their objects are equal as well: TVM writes the names of variables into an object, so kernels have plain ones.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import tvm_ffi
from tvm import tirx

from kiln.callbacks import structural_map

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# Words of TVMScript that are not variables; attributes and operators follow a dot.
_LANGUAGE = set(
    re.findall(
        r"\w+",
        "T I tirx from import script as tvm def None True False if else for in range while with and or not "
        "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 handle",
    )
)


def with_plain_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its parameters, buffers and other variables called v0, v1, … in order of first use."""
    plain: dict[Any, Any] = {}

    def named(variable: Any) -> Any:
        if variable not in plain:
            plain[variable] = tirx.Var(f"v{len(plain)}", variable.ty)
        return plain[variable]

    params = [named(param) for param in func.params]
    body = structural_map(func.body, ((tirx.Var, named),))
    return tirx.PrimFunc(params, body, None, attrs=func.attrs)


def digest(func: tirx.PrimFunc) -> str:
    """12 hexadecimal digits that are equal for equal functions, whatever the names of their variables.

    They are a hash of the function's text, with variables numbered by first use, and of TVM's structural
    hash, which covers the digits of constants that the text rounds.
    """
    plain = func.with_attr("global_symbol", "kernel")
    numbers: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        word = match[0]
        return word if word in _LANGUAGE else numbers.setdefault(word, f"v{len(numbers)}")

    text = _WORD.sub(rename, plain.script(show_meta=False))
    structure = int(tvm_ffi.structural_hash(plain, map_free_vars=True)) & (2**64 - 1)
    return hashlib.sha256(f"{structure:016x}\n{text}".encode()).hexdigest()[:12]
