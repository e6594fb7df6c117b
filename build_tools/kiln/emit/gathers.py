"""Loads of elements at four positions with one instruction of Helium (MVE), VLDR with offsets.

LLVM 22 loads them one by one for a vector of positions that TVM makes: four positions are moved to core
registers, and four elements back, about 10 instructions. The instruction widens elements of 8 and 16 bits to
32, with or without a sign.

Applies to four elements of at most 32 bits of a flat buffer whose positions are not adjacent. Positions are
computed modulo 2^32, the size of the address space.
"""

from __future__ import annotations

from typing import Any

from tvm import DataType, tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.tir.vector_expr import i32

_LANES = 4
_WORDS, _FLOATS = f"int32x{_LANES}", f"float32x{_LANES}"
_SIZES = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "float32": 32}


def gather(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` in which four elements at computed positions are loaded by one instruction."""

    def on_cast(cast: Any) -> Any:
        """Elements that the instruction widens."""
        widens = str(cast.ty.dtype) == _WORDS and isinstance(cast.value, TensorLoad)
        words = _gathered(cast.value) if widens and str(cast.value.ty.dtype) != _FLOATS else None
        return cast if words is None else words

    def on_load(load: Any) -> Any:
        words, dtype = _gathered(load), str(load.ty.dtype)
        if words is None:
            return load
        return tirx.reinterpret(dtype, words) if dtype == _FLOATS else tirx.Cast(dtype, words)

    # Parents first: positions of a load may be computed from elements that are loaded so.
    return structural_map(func, ((tirx.Cast, on_cast), (TensorLoad, on_load)), order="pre")


def _gathered(load: Any) -> Any:
    """The elements of a load as int32; None if the instruction does not apply."""
    element = str(load.source.dtype)
    if element not in _SIZES or str(load.ty.dtype) != f"{element}x{_LANES}" or len(load.indices) != 1:
        return None
    [positions] = load.indices
    if isinstance(positions, tirx.Ramp | tirx.Broadcast):
        return None
    first = tirx.const(0, DataType(str(positions.ty.dtype)).with_lanes(1))
    address, size = tirx.address_of(tirx.BufferLoad(load.source, [first])), _SIZES[element]
    name = f"llvm.arm.mve.vldr.gather.offset.v{_LANES}i32.p0.v{_LANES}i32"
    shift, unsigned = size.bit_length() - 4, int(element.startswith("u"))
    return tirx.call_llvm_intrin(
        _WORDS, name, address, _offsets(positions), i32(size), i32(shift), i32(unsigned)
    )


def _offsets(positions: Any) -> Any:
    """Positions as int32."""
    if isinstance(positions, tirx.Cast) and str(positions.value.ty.dtype) == _WORDS:
        return positions.value
    return positions if str(positions.ty.dtype) == _WORDS else tirx.Cast(_WORDS, positions)
