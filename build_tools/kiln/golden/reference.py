"""Runs a model on the reference: ONNX Runtime for ONNX, LiteRT for TFLite, PyTorch for its own archives.

ONNX Runtime runs with ORT_DISABLE_ALL: its graph optimisations turn quantise/dequantise pairs into integer
kernels that saturate in 16 bits on x86 CPUs without VNNI, and so are not a reference for the graph as
written.

LiteRT has two kernel sets, and they do not agree on quantised models. BUILTIN, the one that LiteRT's users
run (XNNPACK), scales an accumulator in float32 and rounds once; it is the reference unless a model chooses
another, because it is within one level of the quantised graph's exact arithmetic in nearly every element.
BUILTIN_REF scales in 31-bit fixed point and rounds twice, which adds up: on ResNet8 before its softmax the
two sets differ by up to 5 levels, in two thirds of the logits. For float models BUILTIN_REF gives the same
bits on every machine, as it does not choose its code by CPU features; BUILTIN and ONNX Runtime do.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tflite

from kiln import doing
from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.tflite.control import runnable
from kiln.frontend.tflite.files import elements_of, has_stablehlo_control, rounds_activations
from kiln.frontend.torch.kept_buffers import with_kept_buffers
from kiln.frontend.torch.library import load_torch, open_archive
from kiln.frontend.torch.quantised import has_levels
from kiln.golden.moved_program import moved_parameters, with_scales_times
from kiln.golden.onnx_reference import LEAST_OPSET, OnnxRuntime
from kiln.golden.own_reference_tflite import tflite_parts
from kiln.golden.reference_base import Reference, coarsest
from kiln.golden.reference_errors import KERNELS
from kiln.onnx_domains import opset_of

_HALVES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
# By the suffix of the model's file, the references that can run it, the default first.
_ALLOWED = {".onnx": ("onnxruntime",), ".tflite": ("builtin", "builtin_ref"), ".pt2": ("torch",)}


def open_reference(path: Path, kind: str = "auto", shapes: Sequence[Sequence[int]] = ()) -> Reference:
    """The reference `kind` (auto, onnxruntime, builtin, builtin_ref, torch) for the model file `path`.

    `shapes`: shapes of the inputs in the first run, for TFLite files with dynamic shapes. Raises KilnError if
    the reference does not support the file's format or cannot load the model.
    """
    allowed = _ALLOWED.get(path.suffix.lower(), _ALLOWED[".onnx"])
    if kind == "auto":
        kind = allowed[0]
    if kind not in allowed:
        raise KilnError(
            f"{path}: golden.reference '{kind}' cannot run it, allowed: auto, {', '.join(allowed)}"
        )
    reference: Reference
    if kind == "torch":
        reference = Torch(path)
        reference.path = path
        return reference
    try:
        with doing.noted(f"the reference '{kind}' loaded the model"), quiet_stderr():
            reference = LiteRt(path, kind, shapes) if kind in KERNELS else OnnxRuntime(path)
    except Exception as error:  # each reference raises exceptions of its own classes
        # ONNX Runtime prefixes its message with a source file and function.
        text = re.sub(r"^.*? failed:(?:/\S+:\d+ .*?\) (?=[A-Z]))?", "", str(error).strip().splitlines()[0])
        raise KilnError(f"{path}: the reference cannot load it: {text}{_opset_remedy(path)}") from error
    reference.path = path
    return reference


def _opset_remedy(path: Path) -> str:
    """The remedy for an ONNX file of an operator set that ONNX Runtime has dropped; empty for other files."""
    if path.suffix.lower() != ".onnx":
        return ""
    opset = opset_of(onnx.load(path, load_external_data=False))
    convert = f"; it has operators of opset {opset}: convert it with onnx.version_converter.convert_version"
    return convert if opset < LEAST_OPSET else ""


class Torch(Reference):
    """PyTorch on one CPU thread: the operators of the exported program, one after the other."""

    def __init__(self, path: Path) -> None:
        program, *_ = with_kept_buffers(open_archive(path))
        from torch.utils import _pytree

        self._program, self._module = program, program.module()
        self.has_levels = has_levels(program)
        self._replaced: dict[str, Any] = {}  # parameters of a variant, by name
        results = _pytree.tree_leaves([node.meta.get("val") for node in program.graph.nodes])
        kinds = {str(getattr(value, "dtype", "")) for value in (*program.state_dict.values(), *results)}
        self.precision = coarsest([name for kind, name in _HALVES.items() if kind in kinds])
        self._spec = program.call_spec.in_spec
        self._inputs = list(program.graph_signature.user_inputs)
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        self._is_tensor = [isinstance(name, str) and name in values for name in self._inputs]
        self._types = [getattr(values[name], "dtype", None) for name in self._inputs if name in values]
        torch = load_torch(str(path))
        self.about = {
            "name": "torch",
            "version": torch.__version__,
            "settings": {"device": "CPU", "threads": 1},
        }

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        import torch
        from torch.utils import _pytree

        def tensor(array: Array, dtype: Any) -> Any:
            """A tensor; elements of types that NumPy lacks, such as bfloat16, are given as their bits."""
            result = torch.from_numpy(np.asarray(array, order="C"))  # of no axes too
            return result if dtype in (None, result.dtype) else result.view(dtype)

        tensors = iter([tensor(array, dtype) for array, dtype in zip(inputs, self._types, strict=True)])
        leaves = [
            next(tensors) if is_tensor else constant
            for constant, is_tensor in zip(self._inputs, self._is_tensor, strict=True)
        ]
        positional, keywords = _pytree.tree_unflatten(leaves, self._spec)
        with torch.no_grad():
            returned = torch.func.functional_call(
                self._module, self._replaced, tuple(positional), dict(keywords)
            )
        results = [
            torch.as_tensor(value).detach() for value in _pytree.tree_leaves(returned) if value is not None
        ]
        bits = {
            torch.bfloat16: torch.uint16,
            torch.float8_e4m3fn: torch.uint8,
            torch.float8_e5m2: torch.uint8,
        }
        return [value.contiguous().view(bits.get(value.dtype, value.dtype)).numpy() for value in results]

    def moved(self, factor: float, generator: np.random.Generator | None) -> Reference:
        """As for every reference."""
        variant = copy.copy(self)
        variant._module = with_scales_times(self._program, factor)
        variant._replaced = {} if generator is None else moved_parameters(self._module, generator)
        return variant


class LiteRt(Reference):
    """LiteRT on one CPU thread with one of its two kernel sets."""

    def __init__(self, path: Path, kernels: str, shapes: Sequence[Sequence[int]] = ()) -> None:
        from importlib.metadata import version

        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self._shapes = shapes
        resolver = getattr(OpResolverType, KERNELS[kernels])
        open_interpreter = partial(Interpreter, num_threads=1, experimental_op_resolver_type=resolver)
        self._open: Callable[[], Any] = partial(open_interpreter, model_path=str(path))
        content = path.read_bytes()
        model = tflite.Model.GetRootAsModel(content, 0)
        graph = model.Subgraphs(0)
        signatures = [
            np.array(graph.Tensors(index).ShapeSignatureAsNumpy()) for index in graph.InputsAsNumpy()
        ]
        self.has_dynamic_sizes = any((signature < 0).any() for signature in signatures)
        if has_stablehlo_control(model):
            self._open = partial(open_interpreter, model_content=runnable(path, content))
        self._parts = tflite_parts(path, content, lambda part: open_interpreter(model_content=part))
        if self._parts is None:
            self.reset()
        # Activations of 8 bits, with a scale for each run, are as coarse as bfloat16.
        self.precision = "bf16" if rounds_activations(model) else None
        self.about = {
            "name": "LiteRT",
            "version": version("ai-edge-litert"),
            "settings": {"op_resolver": KERNELS[kernels], "threads": 1},
        }

    def reset(self) -> None:
        """Open the model again, so that its variables have their first values."""
        if self._parts is not None:
            return
        self._interpreter = self._open()
        if self._shapes:
            self._resize(self._shapes)
        self._interpreter.allocate_tensors()

    def _resize(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Resize the inputs to `shapes`; returns whether one changed, so that tensors must be allocated."""
        entries = self._interpreter.get_input_details()
        changed = [
            (entry["index"], list(shape))
            for entry, shape in zip(entries, shapes, strict=True)
            if list(entry["shape"]) != list(shape)
        ]
        for index, shape in changed:
            self._interpreter.resize_tensor_input(index, shape)
        return bool(changed)

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        if self._parts is not None:
            return self._parts.run(inputs)
        if self._resize([value.shape for value in inputs]):
            self._interpreter.allocate_tensors()
        for entry, value in zip(self._interpreter.get_input_details(), inputs, strict=True):
            self._interpreter.set_tensor(entry["index"], value)
        self._interpreter.invoke()
        entries = self._interpreter.get_output_details()
        return [elements_of(self._interpreter, entry["index"]) for entry in entries]
