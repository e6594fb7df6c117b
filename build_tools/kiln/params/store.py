"""Modules and kernels on disk: a graph in module.json, its tensors in params.safetensors; functions.json."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm_ffi.serialization import from_json_graph_str

from kiln.callbacks import mutator
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.params import tensors as tensorfile

Tensors = tensorfile.Tensors


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """The elements of a TVM tensor, which are not to be changed: its own memory, where NumPy has the type."""
    if str(tensor.dtype) == "bfloat16":
        return np.asarray(tensor.numpy())
    array = np.from_dlpack(tensor)
    array.setflags(write=False)
    return array


@mutator
class _ConstantSplitter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Replaces every constant that is not a scalar by a variable; equal tensors become one variable."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.tensors: Tensors = {}
        self.variables: list[Any] = []
        self._known: dict[tuple[str, tuple[int, ...], str], Any] = {}

    def visit_generic_const_(self, op: Any) -> Any:
        value = array_of(op.value)
        if value.ndim == 0:
            return op
        key = (str(value.dtype), value.shape, digest(value))
        if key not in self._known:
            name = f"p{len(self.variables)}"
            variable = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
            self._known[key] = variable
            self.variables.append(variable)
            self.tensors[name] = value
        return self._known[key]


def split(mod: tvm.IRModule) -> tuple[tvm.IRModule, Tensors]:
    """Move the constants of `main` to parameters p0, p1, … after the user's inputs.

    Returns the module, and the constants by name of parameter. Attribute num_input of `main` is the number
    of inputs, which come first. Scalars stay in the code.
    """
    main = mod["main"]
    splitter = _ConstantSplitter(mod)
    body = splitter.visit_expr(main.body)
    attributes = main.attrs
    count = len(main.params)
    function = relax.Function(
        [*main.params, *splitter.variables], body, main.ret_ty, main.is_pure, attributes
    ).with_attr("num_input", count)
    result = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    result["main"] = function
    return result, splitter.tensors


def split_into(params: Tensors) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """A pass that applies `split` and adds the constants to `params`."""

    def step(mod: tvm.IRModule) -> tvm.IRModule:
        mod, tensors = split(mod)
        params.update(tensors)
        return mod

    return step


def digest(value: npt.NDArray[Any]) -> str:
    """SHA-256 of the bytes of a parameter, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data).hexdigest()


def save(mod: tvm.IRModule, directory: str | Path) -> None:
    """Write module.json and params.safetensors into `directory`. Raises KilnError when writing fails."""
    module, tensors = split(mod)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensorfile.save(tensors, directory / "params.safetensors")
    atomic_write(directory / "module.json", tvm.ir.save_json(module))


def from_text(text: str) -> Any:
    """The module or function that `save_json` of the same version of TVM wrote as `text`.

    `tvm.ir.load_json` would parse and write the text in Python first, to rename the nodes of older versions:
    most of the time of a large module. Raises exceptions of the reader's own kinds.
    """
    return from_json_graph_str(text)


def save_functions(texts: Mapping[str, str], directory: Path) -> None:
    """Write functions.json: each function by its symbol, as `save_json` wrote it.

    A text for each, so that a function is read without the others, and does not depend on nodes they share.
    """
    write_json(directory / "functions.json", dict(texts))


def load_functions(directory: Path) -> dict[str, str]:
    """The text of each function in functions.json, for `from_text`. Raises KilnError."""
    texts: dict[str, str] = read_json(directory / "functions.json")
    return texts


def load(directory: str | Path) -> tvm.IRModule:
    """Read a module that `save` wrote, with its parameters bound as constants.

    Raises KilnError, which names the file or the folder, when a file is missing or damaged.
    """
    directory = Path(directory)
    try:
        module = from_text((directory / "module.json").read_text(encoding="utf-8"))
        pairs = tensorfile.each(directory / "params.safetensors")
        tensors = {name: tvm.runtime.tensor(value) for name, value in pairs}
        main = module["main"]
        stored = list(main.params)[int(main.attrs["num_input"]) :] if tensors else []
    except OSError as error:
        raise KilnError(f"{error.filename}: cannot read: {error.strerror}") from error
    except Exception as error:  # both readers raise their own kinds
        raise KilnError(f"{directory}: not a module written by Kiln: {error}") from error
    missing = [variable.name for variable in stored if variable.name not in tensors]
    if missing:
        raise KilnError(f"{directory}: not a module written by Kiln: no tensor for parameter {missing[0]}")
    # By variable, not by name as BindParams does: an input of the user's may be called p0 too.
    bound = {variable: tensors[variable.name] for variable in stored}
    module["main"] = main.bind_params(bound)
    return module
