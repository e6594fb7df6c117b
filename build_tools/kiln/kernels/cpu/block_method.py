"""The instructions that kernels/cpu/block_int8.py multiplies integer rows and stored weights by."""

from __future__ import annotations

from dataclasses import dataclass

from kiln.kernels.cpu.compact_weights import CompactForm
from kiln.kernels.cpu.runtime_product import method_of_pairs
from kiln.tir.builder import Machine

_UNSIGNED = 128  # what bytes with a sign are less than those without
# Sums of a tile in registers, by method; the others hold weights and x.
_SUMS = {"vnni": 24, "sdot": 20, "mull": 12, "plain": 4}
_SUMS_16_REGISTERS = {"vnni": 10, "mull": 6}
# Rows that read a few vectors of weights before the next ones, by a method of _CHUNKED.
_ROWS = 32
_CHUNKED = ("narrow", "pairs", "wasm_pairs")  # methods that compute all rows of a tile with a few weights


def method_of(machine: Machine, x_type: str, is_int4: bool) -> str:
    """The name of the instructions that multiply x by weights of 4 or 8 bits.

    `vnni`, `sdot`, and `mull` of NEON. `narrow` is pmaddubsw of other x86, for int8 by 4 bits, so that no sum
    of 16 bits saturates. `pairs` and `wasm_pairs` are pmaddwd and i32x4.dot_i16x8_s of WebAssembly, of
    operands of 16 bits; `plain` is one product of 32 bits at a time.
    """
    pairs = method_of_pairs(machine) or "plain"
    if x_type == "int16":
        return pairs
    if machine.dot in ("vnni", "sdot", "i8mm"):
        return "vnni" if machine.dot == "vnni" else "sdot"
    if pairs == "pairs" and is_int4:
        return "narrow"
    return "mull" if machine.isa == "neon" else pairs


@dataclass(frozen=True)
class BlockMethod:
    """How a machine multiplies: `name` as of `method_of`, `lanes` of a vector of sums, `rows` of a tile.

    `offset`: the zero point of the numbers that are multiplied, where the weights have none of their own.
    """

    name: str
    lanes: int
    rows: int
    offset: int
    is_int4: bool
    centred: bool
    arm32: bool

    @property
    def chunked(self) -> bool:
        """Whether the method is one of _CHUNKED."""
        return self.name in _CHUNKED

    @property
    def in_pairs(self) -> bool:
        """Whether it multiplies pairs of 16 bits."""
        return self.name in ("pairs", "wasm_pairs")

    @classmethod
    def of(cls, machine: Machine, form: CompactForm, rows: int, x_type: str) -> BlockMethod:
        """The method for weights in `form`, and at most `rows` rows of x."""
        is_int4 = form.encoding.kind == "int4"
        name = method_of(machine, x_type, is_int4)
        vectors = form.tile.columns // form.tile.lanes
        table = _SUMS if machine.registers >= 32 else {**_SUMS, **_SUMS_16_REGISTERS}
        tile_rows = _ROWS if name in _CHUNKED else max(1, table[name] // vectors)
        # LLVM sees that numbers of 4 bits are not negative, and then adds products of other columns with SVE.
        centred = is_int4 and name == "sdot" and machine.isa == "sve"
        offset = 8 * (is_int4 and not centred)
        if not is_int4 and name == "vnni":
            offset = _UNSIGNED
        arm32 = machine.word_bits == 32
        return cls(name, form.tile.lanes, min(tile_rows, rows), offset, is_int4, centred, arm32)
