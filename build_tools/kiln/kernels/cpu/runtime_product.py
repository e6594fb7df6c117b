"""The instructions that multiply packed 8-bit rows by packed 8-bit columns; see batch_matmul_int8.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.gemm_tile import WIDENED
from kiln.kernels.cpu.matrix_tile import LANES as MATRIX_LANES
from kiln.tir.builder import Machine, bind, load
from kiln.tir.vector_expr import ramp

# By method and number of sums: LLVM's name of the instruction that multiplies vectors of 16 bits, and adds
# each two adjacent products.
PAIRS: dict[tuple[str, int], str] = {
    ("pairs", 4): "llvm.x86.sse2.pmadd.wd",
    ("pairs", 8): "llvm.x86.avx2.pmadd.wd",
    ("pairs", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("wasm_pairs", 4): "llvm.wasm.dot",
}


def method_of_pairs(machine: Machine) -> str | None:
    """The method of PAIRS that a machine has; None: none."""
    if machine.isa == "simd128":
        return "wasm_pairs"
    return "pairs" if machine.isa in ("sse4", "avx2", "avx512") else None


def multiply_pairs(method: str, lanes: int, left: Expr, right: Expr) -> Expr:
    """The sums of `lanes` pairs of products of two vectors of 16 bits."""
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", PAIRS[method, lanes], left, right)


def dot_of_four(sums: Expr, left: Expr, right: Expr, lanes: int) -> Expr:
    """`sums` plus four products of int8 in each of its lanes, by ARM's SDOT."""
    if lanes == MATRIX_LANES:
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, left, right)
    # LLVM makes SDOT of SVE of this sum. It may add other products to a lane, as long as all are added: that
    # it adds those of one group is what its lowering to SDOT does, and what tests compare.
    every = f"int32x{4 * lanes}"
    name = f"llvm.vector.partial.reduce.add.v{lanes}i32.v{4 * lanes}i32"
    products = tirx.Cast(every, left) * tirx.Cast(every, right)
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, products)


def selects_lane(method: str, lanes: int) -> bool:
    """Whether the instruction can multiply by a group of x from any lane of a register, as SDOT of NEON does.

    One load per row then replaces four broadcasts, each of which occupies a multiplication unit.
    """
    return method == "sdot" and lanes == MATRIX_LANES


def groups_of_vector(values: Expr, lanes: int) -> list[Expr]:
    """Each of the `lanes` groups of four bytes in `values`, in all lanes of a vector."""
    words = bind(tirx.reinterpret(f"int32x{lanes}", values))
    groups = [tirx.Shuffle([words], [tirx.IntImm("int32", lane)]) for lane in range(lanes)]
    return [tirx.reinterpret(f"int8x{4 * lanes}", tirx.Broadcast(group, lanes)) for group in groups]


@dataclass(frozen=True)
class RuntimeProduct:
    """How a machine multiplies operands: `group` products at a time, of `left` by `right` types.

    `shift`: added to the rows before they are packed. `wide`: whether the sums are int64, of 16-bit operands.
    """

    method: str
    group: int
    lanes: int
    left: str
    right: str
    shift: int
    wide: bool = False

    def multiply(self, sums: Expr, rows: Expr, columns: Expr) -> Expr:
        """`sums` plus the products of one group, in every lane."""
        int32 = f"int32x{self.lanes}"
        if self.method == "vnni":
            name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
            return tirx.call_llvm_pure_intrin(int32, name, sums, rows, columns)
        if self.method == "sdot":
            return dot_of_four(sums, columns, rows, self.lanes)
        return sums + self.products(rows, columns)

    def products(self, rows: Expr, columns: Expr) -> Expr:
        """The products of one group of 16 bits, in every lane."""
        if (self.method, self.lanes) in PAIRS:
            return multiply_pairs(self.method, self.lanes, rows, columns)
        int32 = f"int32x{self.lanes}"
        return tirx.Cast(int32, rows) * tirx.Cast(int32, columns)

    def row_group(self, memory: Any, offset: Expr) -> Expr:
        """One group of a packed row, in every lane."""
        if self.group == 1:
            return tirx.Broadcast(load(memory, [offset]), self.lanes)
        bits = tirx.reinterpret("int32", load(memory, [ramp(offset, self.group)]))
        return tirx.reinterpret(f"{self.left}x{self.group * self.lanes}", tirx.Broadcast(bits, self.lanes))

    def ones(self) -> Expr:
        """A group of rows that are 1."""
        return tirx.Broadcast(tirx.const(1, self.left), self.group * self.lanes)


def form_of(machine: Machine, left: str, right: str) -> RuntimeProduct:
    """How `machine` multiplies rows of type `left` by columns of type `right`; one of int16: in int64."""
    lanes = machine.lanes("int32")
    if "int16" in (left, right):
        by_pairs = method_of_pairs(machine)
        return RuntimeProduct(by_pairs or "plain", 2 if by_pairs else 1, lanes, "int16", "int16", 0, True)
    if machine.dot == "vnni" and right == "int8":
        return RuntimeProduct("vnni", 4, lanes, "uint8", "int8", 128 if left == "int8" else 0)
    if machine.dot == "i8mm" and right == "int8":
        return RuntimeProduct("usmmla" if left == "uint8" else "smmla", 8, MATRIX_LANES, left, "int8", 0)
    if machine.dot == "sdot" and right == "int8":
        return RuntimeProduct("sdot", 4, lanes, "int8", "int8", -128 if left == "uint8" else 0)
    pairs = method_of_pairs(machine)
    if pairs is not None and (pairs, lanes) in PAIRS:
        return RuntimeProduct(pairs, 2, lanes, "int16", "int16", 0)
    if machine.isa == "rvv":
        return RuntimeProduct("widen", 1, WIDENED * lanes, "int16", "int16", 0)
    return RuntimeProduct("plain", 1, lanes, "int16", "int16", 0)
