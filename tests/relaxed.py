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
from tvm import relax

Array = npt.NDArray[Any]
Body = Callable[..., Any]
# Compiles the references by TVM itself, of small tensors: LLVM's optimisations would take most of their time.
PLAIN = tvm.target.Target({"kind": "llvm", "opt-level": 0})


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
    """A Relax module, compiled by TVM's default pipeline without optimisations."""
    return relax.VirtualMachine(loaded(relax.build(mod, PLAIN)), tvm.cpu())


def run_by_tvm(mod: tvm.IRModule, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of `main`, by TVM's default pipeline."""
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
