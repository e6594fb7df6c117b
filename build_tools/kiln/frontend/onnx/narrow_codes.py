"""Numbers of few bits as codes: the operators of the domain `kiln.narrow`.

bfloat16 is stored as uint16, the upper half of a float32. A float of at most 8 bits is stored as uint8,
one code an element (kiln.frontend.onnx.narrow_types). Decode reads a table of all codes. Encode rounds the
bits of a float32 to the nearest code, of two equally near ones to the even code. Integers of 2 and 4 bits
are stored as int8 and uint8, one an element.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.narrow_types import is_integer, stored_as
from kiln.frontend.onnx.quantise_ops import broadcast_parameters, check_scale
from kiln.frontend.onnx.quantised_constants import levels_of_constant

op = relax.op
_EXPONENT_ONLY = TensorProto.FLOAT8E8M0
_FLOAT_BITS = 23  # of a float32's mantissa
_INFINITE = 0x7F800000  # the bits of an infinity


def decode(body: Body) -> list[str]:
    """Decode: the float32 of each code; the attribute `of` is the type of the codes."""
    return [body.bind(_decode_codes(body, body.input(0), int(body.required("of"))))]


def _decode_codes(body: Body, name: str, kind: int) -> Any:
    if kind == TensorProto.BFLOAT16:
        return body.emit_te(_from_bfloat16, body.tensor(name), hint="decode")
    codes = np.arange(256, dtype="uint8")
    bits = _info(kind).bits
    table = (codes & ((1 << bits) - 1)).view(_numpy(kind)).astype("float32")
    indices = body.bind(op.astype(body.tensor(name), "int32"))
    return op.take(relax.const(table, "float32"), body.tensor(indices), 0, mode="clip")


def encode(body: Body) -> list[str]:
    """Encode: the code of each number in the type `to`; `saturate` and `round_mode`: as Cast has them."""
    kind, saturate = int(body.required("to")), bool(body.attribute("saturate", 1))
    mode = body.only("round_mode", "up", "down", "nearest")
    if kind == TensorProto.BFLOAT16:
        return [body.bind(body.emit_te(_to_bfloat16, body.tensor(body.input(0)), hint="encode"))]
    return [_encode_numbers(body, body.cast(body.input(0), "float32"), kind, saturate, mode)]


def _from_bfloat16(x: Any) -> Any:
    def wide(*indices: Any) -> Any:
        bits = tirx.Cast("uint32", x(*indices))
        return tirx.reinterpret("float32", bits << _uint32(16))

    return te.compute(x.shape, wide, name="decode")


def _to_bfloat16(x: Any) -> Any:
    def rounded(*indices: Any) -> Any:
        bits = tirx.reinterpret("uint32", x(*indices))
        half = bits + _uint32(0x7FFF) + ((bits >> _uint32(16)) & _uint32(1))
        is_nan = (bits & _uint32(0x7FFFFFFF)) > _uint32(_INFINITE)
        half = tirx.Select(is_nan, bits | _uint32(0x400000), half)
        return tirx.Cast("uint16", half >> _uint32(16))

    return te.compute(x.shape, rounded, name="encode")


def _encode_numbers(body: Body, name: str, kind: int, saturate: bool, mode: str = "up") -> str:
    def code(value: Any) -> Any:
        bits = tirx.reinterpret("uint32", value)
        number = (
            _exponent_code(bits, saturate, mode)
            if kind == _EXPONENT_ONLY
            else _float_code(bits, kind, saturate)
        )
        return tirx.Cast("uint8", number)

    def compute(x: Any) -> Any:
        return te.compute(x.shape, lambda *indices: code(x(*indices)), name="encode")

    return body.bind(body.emit_te(compute, body.tensor(name), hint="encode"))


def _float_code(bits: Any, kind: int, saturate: bool) -> Any:
    """The code of the float32 with the bits `bits`, as uint32."""
    dtype = _numpy(kind)
    info = _info(kind)
    mantissa_bits, least_exponent = int(info.nmant), int(info.minexp)
    greatest = int(np.array(info.max).astype(dtype).view("uint8"))
    with np.errstate(all="ignore"):
        beyond, nan = (int(np.array(x, "float32").astype(dtype).view("uint8")) for x in (np.inf, np.nan))
    magnitude, negative = bits & _uint32(0x7FFFFFFF), bits >> _uint32(31)
    shift = _FLOAT_BITS - mantissa_bits
    rounded = magnitude + _uint32((1 << (shift - 1)) - 1) + ((magnitude >> _uint32(shift)) & _uint32(1))
    normal = (rounded >> _uint32(shift)) - _uint32((126 + least_exponent) << mantissa_bits)
    # Below the least normal number, a float32 with the spacing of the codes rounds as they do.
    spaced = np.float32(2.0 ** (_FLOAT_BITS + least_exponent - mantissa_bits))
    total = tirx.reinterpret("float32", magnitude) + tirx.const(spaced, "float32")
    small = tirx.reinterpret("uint32", total) - _uint32(int(spaced.view("uint32")))
    code = tirx.Select(magnitude < _uint32((127 + least_exponent) << _FLOAT_BITS), small, normal)
    too_large = tirx.any(code > _uint32(greatest), magnitude >= _uint32(_INFINITE))
    code = tirx.Select(too_large, _uint32(greatest if saturate else beyond), code)
    code = tirx.Select(magnitude > _uint32(_INFINITE), _uint32(nan), code)
    sign = int(info.bits) - 1
    if np.array(-0.0, "float32").astype(dtype).view("uint8") == 0:  # one zero; the other's code is NaN
        unsigned = tirx.any(code == _uint32(0), code == _uint32(nan))
        return tirx.Select(unsigned, code, code | (negative << _uint32(sign)))
    return code | (negative << _uint32(sign))


def _exponent_code(bits: Any, saturate: bool, mode: str) -> Any:
    """The code of a power of two: the exponent of a float32, whose sign does not count."""
    exponent, mantissa = (bits >> _uint32(_FLOAT_BITS)) & _uint32(0xFF), bits & _uint32(0x7FFFFF)
    if mode == "down":
        return exponent
    up = mantissa > _uint32(0)
    if mode == "nearest":
        half = _uint32(0x400000)
        up = tirx.any(mantissa > half, tirx.all(mantissa == half, exponent > _uint32(0)))
    up = tirx.all(up, exponent < _uint32(0xFE if saturate else 0xFF))
    return exponent + tirx.Select(up, _uint32(1), _uint32(0))


def _uint32(number: int) -> Any:
    return tirx.IntImm("uint32", number)


def wrap(body: Body) -> list[str]:
    """Wrap: the lowest bits of each number's integral part, as an integer of the type `to`."""
    info = _info(int(body.required("to")))
    bits, signed = int(info.bits), int(info.min) < 0
    integers = body.bind(op.astype(body.tensor(body.input(0)), "int32"))
    mask, half = relax.const((1 << bits) - 1, "int32"), relax.const(1 << (bits - 1), "int32")
    if signed:  # the sign bit is moved out of the way and back
        moved = op.bitwise_and(op.add(body.tensor(integers), half), mask)
        return [body.bind(op.astype(op.subtract(moved, half), "int8"))]
    return [body.bind(op.astype(op.bitwise_and(body.tensor(integers), mask), "uint8"))]


def quantize_narrow(body: Body) -> list[str]:
    """QuantizeLinear to a narrow type, attribute `narrow`: saturate(round(data / scale) + zero point)."""
    data, scale, zero = (body.input(index) for index in range(3))
    kind, saturate = int(body.required("narrow")), bool(body.attribute("saturate", 1))
    body.accept_attributes("output_dtype")
    body.only("precision", 0, 1)  # float32 arithmetic
    check_scale(body, scale)
    wide, point, _, _ = broadcast_parameters(body, data, scale, zero)
    real = op.divide(body.tensor(body.cast(data, "float32")), body.tensor(body.cast(wide, "float32")))
    if not is_integer(kind):
        if point:
            real = op.add(body.bind_tensor(real), _decode_codes(body, point, kind))
        return [_encode_numbers(body, body.bind(real), kind, saturate)]
    info = _info(kind)
    known = levels_of_constant(body, data, scale, zero, int(info.min), int(info.max))
    if known is not None:
        return [body.const(known, stored_as(kind))]
    levels = op.round(real)
    if point:
        levels = op.add(levels, op.astype(body.tensor(point), "float32"))
    clipped = op.clip(levels, float(int(info.min)), float(int(info.max)))
    return [body.bind(op.astype(clipped, stored_as(kind)))]


def dequantize_narrow(body: Body) -> list[str]:
    """DequantizeLinear of floating-point codes of the type `narrow`: (data - zero point) * scale."""
    data, scale, zero = (body.input(index) for index in range(3))
    kind = int(body.required("narrow"))
    body.accept_attributes("output_dtype")
    check_scale(body, scale, of_weights=body.constant(data) is not None)
    wide, point, _, _ = broadcast_parameters(body, data, scale, zero)
    real = _decode_codes(body, data, kind)
    if point:
        real = op.subtract(real, _decode_codes(body, point, kind))
    return [body.bind(op.multiply(real, body.tensor(body.cast(wide, "float32"))))]


def _info(kind: int) -> Any:
    """NumPy's description of the numbers of an element type."""
    info_of: Any = ml_dtypes.iinfo if is_integer(kind) else ml_dtypes.finfo
    return info_of(_numpy(kind))


def _numpy(kind: int) -> Any:
    return helper.tensor_dtype_to_np_dtype(kind)


NARROW: dict[str, Expansion] = {
    "Decode": decode,
    "DequantizeLinear": dequantize_narrow,
    "Encode": encode,
    "QuantizeLinear": quantize_narrow,
    "Wrap": wrap,
}
