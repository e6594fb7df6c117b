"""The kernel ABI: pointers and two int32 only, and objects that need no library, on every shipped target."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from elftools.elf.elffile import ELFFile
from kiln.config import list_targets, load_target
from kiln.emit import run_time_library
from kiln.emit.object_symbols import symbols
from kiln.emit.objects import compile_all, compile_object, missing_symbols
from kiln.emit.run_time_library import is_available
from kiln.errors import KilnError
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from relaxed import const, module
from tvm import relax

op = relax.op
RNG = np.random.default_rng(0)
_X86_64, _AARCH64 = load_target("x86_64").for_variant("v3"), load_target("aarch64").for_variant("base")
EVERY = [load_target(entry.name) for entry in list_targets()]
HOSTED = sorted(t.name for t in EVERY if t.cuda is None and t.deployment == "hosted")
# The code of the other cores runs in tests/device/test_bare_machines.py.
# One of each architecture. The others, which differ from one of these in the processor's extensions, the
# system or the C library alone, compile in ./kiln test all; tests/device builds for macOS and Windows too.
_GATE = {"x86_64", "aarch64", "armv7", "riscv64", "wasm32"}
TARGETS = [
    *(pytest.param(name, marks=[] if name in _GATE else [pytest.mark.heavy]) for name in HOSTED),
    "cortex_m4",
    "riscv32_imafc",
]
MACHINES = {
    "x86_64": "EM_X86_64",
    "aarch64": "EM_AARCH64",
    "armv7": "EM_ARM",
    "arm_m": "EM_ARM",
    "riscv32": "EM_RISCV",
    "riscv64": "EM_RISCV",
}


def _body(image: Any, quantised: Any, indices: Any) -> list[Any]:
    """Every family, wide and odd sizes, float and integer, the functions, scratch memory."""
    conv = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    y = op.nn.conv2d(image, const(RNG.standard_normal((3, 3, 17, 30))), padding=1, **conv)
    y = op.nn.gelu(op.add(y, const(RNG.standard_normal(30))))
    z = op.nn.conv2d(y, const(RNG.standard_normal((3, 3, 1, 30))), groups=30, padding=1, strides=2, **conv)
    pooled = op.mean(op.nn.silu(z), [1, 2])
    real = op.dequantize(quantised, const(0.1), const(3, "int8"), out_dtype="float32")
    weights = op.dequantize(
        const(RNG.integers(-99, 99, (3, 3, 5, 9)), "int8"), const(0.1), const(0, "int8"), axis=3,
        out_dtype="float32",
    )  # fmt: skip
    whole = op.quantize(
        op.nn.relu(op.nn.conv2d(real, weights, **conv)), const(0.3), const(-5, "int8"), out_dtype="int8"
    )
    return [
        op.nn.softmax(op.matmul(pooled, const(RNG.standard_normal((30, 11))))),
        op.nn.layer_norm(pooled, const(np.ones(30)), const(np.zeros(30)), axes=[-1]),
        op.argmax(pooled, 1),
        op.cumsum(pooled, 1),
        op.tanh(op.log(op.add(op.erf(pooled), const(1.5)))),
        op.add(op.sin(pooled), op.power(op.abs(pooled), const(1.7))),
        op.round(op.floor(pooled)),
        whole,
        op.take(pooled, op.minimum(indices, const(29, "int64")), axis=1),
        op.image.resize2d(z, [9, 7], layout="NHWC", method="linear"),
        op.nn.max_pool2d(y, 3, 2, 1, layout="NHWC"),
        op.concat([pooled, pooled], 0),
    ]


@pytest.fixture(scope="module")
def simplified() -> tvm.IRModule:
    shapes = [((2, 7, 9, 17), "float32"), ((1, 6, 7, 5), "int8"), ((13,), "int64")]
    return simplify(module(shapes, _body))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_objects_need_no_library(name: str, simplified: tvm.IRModule, tmp_path: Path) -> None:
    shipped = load_target(name)
    target = shipped.for_variant(shipped.base)
    steps = lower(simplified, Lowering("m", target, target.threads))
    _check_signatures(steps)
    path = tmp_path / "kernels.o"
    compile_object(steps.functions, target, path)
    assert missing_symbols(path, target) == []
    defined = {symbol.name for symbol in symbols(path.read_bytes()) if symbol.defined and symbol.function}
    assert set(steps.functions) <= defined
    if target.system.format != "elf":
        return
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == MACHINES[target.arch]
        assert elf["e_type"] == "ET_REL"
        table = elf.get_section_by_name(".symtab").iter_symbols()
        shared = {symbol.name for symbol in table if symbol["st_info"]["bind"] == "STB_GLOBAL"}
        assert set(steps.functions) <= shared
        unexpected = {name for name in shared - set(steps.functions) if not is_available(name, target)}
        assert unexpected <= {"_GLOBAL_OFFSET_TABLE_"}, "nothing but kernels, named by content"
        assert all(name.startswith("kilnk_") for name in steps.functions)
        written = [s.name for s in elf.iter_sections() if s["sh_flags"] & 1 and s["sh_size"]]
        assert written == [], "no global that is written"


def _check_signatures(steps: Steps) -> None:
    kernels = {kernel.symbol: kernel for kernel in steps.kernels}
    assert set(kernels) == set(steps.functions)
    for symbol, func in steps.functions.items():
        kernel = kernels[symbol]
        kinds = [_kind(param.ty) for param in func.params]
        expected = ["pointer"] * len(kernel.args) + ["int32"] * (2 if kernel.parallel else 0)
        assert kinds == expected, symbol
    for step in steps.steps:
        assert len(step.args) == len(kernels[step.kernel].args)
        assert (step.extent > 0) == kernels[step.kernel].parallel


def _kind(ty: Any) -> str:
    return "pointer" if isinstance(ty, tvm.ir.PointerType) else str(ty.dtype)


def test_no_threads_means_no_parallel_kernels(simplified: tvm.IRModule) -> None:
    steps = lower(simplified, Lowering("m", _X86_64, "none"))
    assert not any(kernel.parallel for kernel in steps.kernels)
    assert all(step.extent == 0 for step in steps.steps)


def test_the_same_module_gives_the_same_kernels(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        conv = op.nn.conv2d(x, const(np.ones((3, 3, 5, 9))), data_layout="NHWC", kernel_layout="HWIO")
        return [op.nn.softmax(op.mean(op.nn.gelu(conv), [1, 2])), op.concat([conv, conv], 0)]

    target, small = _X86_64, simplify(module([((1, 6, 7, 5), "float32")], body))
    results = []
    for index in range(2):
        steps = lower(small, Lowering("m", target, "pthread"))
        path = tmp_path / f"{index}.o"
        compile_object(steps.functions, target, path)
        results.append((path.read_bytes(), steps.record()))
    assert results[0] == results[1]


def test_equal_kernels_are_made_once() -> None:
    weights = [RNG.standard_normal((3, 3, 4, 4)) for _ in range(3)]

    def body(x: Any) -> Any:
        for value in weights:
            x = op.nn.relu(op.nn.conv2d(x, const(value), padding=1, data_layout="NHWC", kernel_layout="HWIO"))
        return x

    steps = lower(module([((1, 6, 6, 4), "float32")], body), Lowering("m", _X86_64, "none"))
    convolutions = [kernel for kernel in steps.kernels if kernel.family == "conv2d"]
    assert len(convolutions) <= 2
    assert sum(step.kernel == convolutions[0].symbol for step in steps.steps) >= 2
    packed = [name for name in steps.params if convolutions[0].symbol in name]
    assert len(packed) >= 2


def test_large_buffers_between_parts_are_scratch_parameters() -> None:
    """An instance normalisation is left as TVM wrote it, with whole tensors between its parts."""

    def body(x: Any) -> Any:
        ones, zeros = const(np.ones(5)), const(np.zeros(5))
        return op.nn.instance_norm(x, ones, zeros, channel_axis=1, axes=[2, 3])

    steps = lower(module([((2, 5, 30, 40), "float32")], body), Lowering("m", _X86_64, "none"))
    scratch = [tensor for tensor in steps.tensors.values() if tensor.kind == "workspace"]
    used = {name for step in steps.steps for name in step.args}
    assert all(tensor.name in used for tensor in scratch)
    for func in steps.functions.values():
        text = func.script(show_meta=False)
        assert not re.search(r"alloc_buffer\(\((T.int64\()?\d{4,}", text), "no large buffer on the stack"


def test_division_of_64_bits_is_named_where_it_needs_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod = module([((13,), "int64")], lambda x: op.floor_divide(x, const(7, "int64")))
    steps = lower(mod, Lowering("m", load_target("armv7"), "none"))
    compile_all(steps.functions, load_target("armv7"), tmp_path / "arm.o", "m", steps.kernels)
    monkeypatch.delitem(run_time_library._OF_COMPILER, "armv7")  # as if compilers had no such functions
    with pytest.raises(
        KilnError, match=r"operator 'floor_divide' cannot be compiled: it needs __aeabi_ldivmod"
    ):
        compile_all(steps.functions, load_target("armv7"), tmp_path / "arm.o", "m", steps.kernels)
    steps = lower(mod, Lowering("m", _AARCH64, "none"))
    compile_all(
        steps.functions,
        _AARCH64,
        tmp_path / "aarch64.o",
        "m",
        steps.kernels,
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    target = _X86_64
    mod = module([((3, 5), "float32")], lambda x: [op.nn.relu(x), op.atan2(x, x)])
    steps = lower(mod, Lowering("m", target, "none"))
    with pytest.raises(KilnError, match=r"m: operator 'atan2' cannot be compiled: it needs atan2f"):
        compile_all(steps.functions, target, tmp_path / "kernels.o", "m", steps.kernels)


def test_code_that_no_loop_nest_describes_reads_parameters() -> None:
    """Tensors that an opaque kernel only reads are const, since parameters are in read-only memory."""
    rows, new = const(np.array([[0], [2]]), "int64"), const(np.ones((2, 3)))
    mod = module([((4, 3), "float32")], lambda x: op.scatter_nd(op.nn.relu(x), rows, new))
    steps = lower(mod, Lowering("m", _X86_64, "none"))
    assert set(steps.params) != set()
    kernel = next(one for one in steps.kernels if one.family == "opaque")
    assert [arg.const for arg in kernel.args] == [True, True, False]  # its input is copied before


@pytest.mark.parametrize("target", ["x86_64", "cuda"])
def test_a_function_of_tvms_runtime_is_named(target: str) -> None:
    def suppressed(x: Any) -> Any:
        valid = op.vision.get_valid_counts(x, 0.1, id_index=-1, score_index=0)
        count, data, indices = (relax.TupleGetItem(valid, index) for index in range(3))
        limits = {"max_output_size": 3, "id_index": -1, "score_index": 0, "coord_start": 1}
        return relax.TupleGetItem(op.vision.non_max_suppression(data, count, indices, **limits), 0)

    mod = module([((1, 12, 5), "float32")], suppressed)
    wanted = (
        r"m: operator 'vision.non_max_suppression' cannot be compiled: it calls tvm\.contrib\.\S+, a function"
    )
    with pytest.raises(KilnError, match=wanted):
        lower(mod, Lowering("m", load_target(target), "none"))
