"""Small Relax modules for tests, and running them with TVM's own kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from kiln.graph.bindings import operator
from tvm import relax, s_tir, tirx
from tvm.tirx import compilation_pipeline

Array = npt.NDArray[Any]
Body = Callable[..., Any]
# Compiles the references by TVM itself, of small tensors: LLVM's optimisations would take most of their time.
PLAIN = tvm.target.Target({"kind": "llvm", "opt-level": 0})
# TVM's passes without those that simplify, optimise or serve GPUs, by the name that `relax.build` takes.
PLAIN_PIPELINE = "plain"
# Kernels that check the shapes of their arguments are twice as long. TVM derives the shapes itself.
_UNCHECKED = {"tirx.disable_assert": True}


def _plain_pipeline() -> tuple[Any, Any, Any]:
    passes = [
        s_tir.transform.LowerInitBlock(), s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(), s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(), tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(), tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(False), tirx.transform.UnrollLoop(), tirx.transform.FP8ComputeLegalize(),
        tirx.transform.AnnotateEntryFunc(), tirx.transform.SplitHostDevice(), tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize(),
    ]  # fmt: skip

    @tvm.transform.module_pass(opt_level=0)
    def pipeline(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        return tvm.transform.Sequential(passes)(mod)

    return pipeline, compilation_pipeline.finalize_host_passes, compilation_pipeline.finalize_device_passes


compilation_pipeline.register_tir_pipeline(PLAIN_PIPELINE, _plain_pipeline)


def rounded_to_tf32(x: Array) -> Array:
    """Float32 numbers rounded to 10 bits of mantissa, ties away from zero."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def module(arguments: Sequence[tuple[Sequence[int], str]], body: Body) -> tvm.IRModule:
    """A Relax module with a function `main`; `arguments`: shape and dtype of each tensor that it takes.

    `body` gets the variables and returns one expression or a list of them, which `main` returns.
    """
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{index}", relax.TensorType(list(shape), dtype))
        for index, (shape, dtype) in enumerate(arguments)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = body(*variables)
            results = result if isinstance(result, list) else [result]
            outputs = [builder.emit_output(builder.normalize(item)) for item in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else outputs)
    return builder.get()


def const(value: Array | float, dtype: str = "float32") -> Any:
    """A Relax constant."""
    return relax.const(np.asarray(value, dtype=dtype), dtype)


def loaded(built: tvm.runtime.Executable) -> tvm.runtime.Module:
    """`built`, with its kernels loaded from a shared library.

    TVM's JIT generates optimised code whatever the target says, for which it takes three times longer.
    """
    module = built.mod
    if module.kind == "llvm":
        return _library(module)
    parts = [_library(part) if part.kind == "llvm" else part for part in module.imports]
    module.clear_imports()
    for part in parts:
        module.import_module(part)
    return module


def _library(kernels: tvm.runtime.Module) -> tvm.runtime.Module:
    """Generated code, compiled, linked and loaded."""
    with tempfile.TemporaryDirectory(prefix="kiln-plain-") as folder:
        code, library = os.path.join(folder, "plain.o"), os.path.join(folder, "plain.so")
        kernels.write_to_file(code)
        subprocess.run(["ld", "-shared", "-o", library, code], check=True)
        return tvm.runtime.load_module(library)


def virtual_machine(mod: tvm.IRModule) -> relax.VirtualMachine:
    """A Relax module, compiled by TVM without optimisations."""
    with tvm.transform.PassContext(config=_UNCHECKED):
        built = relax.build(mod, PLAIN, tir_pipeline=PLAIN_PIPELINE)
    return relax.VirtualMachine(loaded(built), tvm.cpu())


def run_by_tvm(mod: tvm.IRModule, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of `main`, computed by TVM's virtual machine."""
    machine = virtual_machine(mod)
    result = machine["main"](*[tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs])
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]


def calls(mod: tvm.IRModule) -> list[Any]:
    """The operator calls of `main`, in order."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [binding.value for binding in bindings if operator(binding.value)]


def operators(mod: tvm.IRModule) -> list[str]:
    """The operators of `main`, in order, without `relax.`."""
    return [str(operator(call)).removeprefix("relax.") for call in calls(mod)]
