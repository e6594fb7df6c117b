"""The shipped models as the conformance tests see them: file, import, and host-compiled function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from kiln.config import load_model, stage_config
from kiln.config.boxes import Box
from kiln.config.interface import Interface
from kiln.config.slice_records import ImportConfig
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from kiln.sources import fetch
from tvm import relax

Array = npt.NDArray[Any]


@functools.cache
def source(name: str) -> Path:
    """The model file of the shipped model `name`, fetched or from the cache."""
    return fetch(load_model(name).source)


def imported(
    name: str, path: Path | None = None, bucket: Box | None = None
) -> tuple[tvm.IRModule, Interface]:
    """The module and interface of a shipped model, or of the variant of it in `path`.

    `bucket`: the bucket to import for, of models with dimensions.
    """
    options = from_config(ImportConfig.model_validate(stage_config(load_model(name), "import")), bucket)
    return import_model(path or source(name), options)


def compile_on_host(module: tvm.IRModule) -> Callable[[Sequence[Array]], list[Array]]:
    """Compile with TVM's own pipeline: slow kernels, but none of Kiln's passes between import and result."""
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())

    def call(inputs: Sequence[Array]) -> list[Array]:
        result = machine["main"](*[tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs])
        return (
            [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]
        )

    return call
