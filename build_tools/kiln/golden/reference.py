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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tflite

from kiln import doing
from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.onnx.half_types import half_types
from kiln.frontend.onnx.plain_session import is_newer, plain_session
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.tflite.control import runnable
from kiln.frontend.tflite.files import has_stablehlo_control, rounds_activations
from kiln.frontend.torch.kept_buffers import with_kept_buffers
from kiln.frontend.torch.library import load_torch, open_archive
from kiln.frontend.torch.quantised import has_levels
from kiln.golden.exact_graph import exact_content
from kiln.golden.moved_program import moved_parameters, with_scales_times
from kiln.golden.own_reference import onnx_parts
from kiln.golden.own_reference_tflite import tflite_parts
from kiln.golden.reference_errors import KERNELS, CannotRunError, other_way, reason
from kiln.golden.stored_ports import evaluator, needs_evaluator

_HALVES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
_LEAST_OPSET = 7  # that ONNX Runtime runs
# By the suffix of the model's file, the references that can run it, the default first.
_ALLOWED = {".onnx": ("onnxruntime",), ".tflite": ("builtin", "builtin_ref"), ".pt2": ("torch",)}


def _coarsest(precisions: Sequence[str]) -> str | None:
    return next((name for name in ("bf16", "fp16") if name in precisions), None)


class Reference:
    """One model in a reference runtime.

    `about`: name, version and settings for golden.json. `precision`: fp16 or bf16 where it computes with 16
    bits, so that rounding is coarser than float32's. `graph`: the model without external data, for ONNX.
    `has_dynamic_sizes`: whether an input has a size that the file does not fix. `has_levels`: whether a
    PyTorch program rounds activations to levels.
    """

    path: Path
    about: dict[str, Any]
    precision: str | None = None
    graph: onnx.ModelProto | None = None
    has_dynamic_sizes = True
    has_levels = False

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for `inputs`, both in the model's own order. Raises KilnError if the run fails."""
        try:
            with doing.noted(f"{self.title} ran the model", other_way(self.about)), quiet_stderr():
                return self._run(inputs)
        except Exception as error:  # each reference raises exceptions of its own classes
            text = reason(error).rstrip(". ")
            shapes = ", ".join(str(list(np.shape(value))) for value in inputs)
            dims = (
                "allow in 'dims' only sizes that the model can have, and " if self.has_dynamic_sizes else ""
            )
            raise CannotRunError(
                f"{self.path}",
                f"the reference, {self.about['name']}, cannot run it: {text}; its inputs were of {shapes}",
                f"{dims}if it cannot compute with random numbers, give other inputs with the key 'golden'",
            ) from error

    @property
    def title(self) -> str:
        """Name, version and kernels of the library, such as `LiteRT 2.1.2 (BUILTIN)`."""
        kernels = self.about["settings"].get("op_resolver")
        return f"{self.about['name']} {self.about['version']}{f' ({kernels})' if kernels else ''}"

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        raise NotImplementedError

    def like(self, variant: Reference) -> Reference:
        """`variant` of the model, in the state of this reference."""
        return variant

    def moved(self, factor: float, generator: np.random.Generator | None) -> Reference | None:
        """A PyTorch program whose steps between levels are multiplied by `factor`; None for other formats.

        With `generator`, its float parameters are moved too, as `kiln.golden.moved_program` does.
        """
        return None

    def reset(self) -> None:
        """Set the model's state back to its first values; does nothing for a file without state."""


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
    model = onnx.load(path, load_external_data=False)
    opset = min((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=7)
    convert = f"; it has operators of opset {opset}: convert it with onnx.version_converter.convert_version"
    return convert if opset < _LEAST_OPSET else ""


class OnnxRuntime(Reference):
    """ONNX Runtime on one CPU thread, with every graph optimisation off.

    ONNX's own evaluator replaces it for a model with inputs or outputs of types that NumPy lacks, and for one
    with operators that are newer than ONNX Runtime.
    """

    _evaluate: Callable[[Sequence[Array]], list[Array]]

    def __init__(self, path: Path) -> None:
        self.graph = onnx.load(path, load_external_data=False)
        self.has_dynamic_sizes = any(
            not dim.HasField("dim_value")
            for value in self.graph.graph.input
            for dim in value.type.tensor_type.shape.dim
        )
        self.precision = _coarsest(half_types(self.graph))
        if not needs_evaluator(self.graph):
            try:
                self._open_session(path, self.graph)
                return
            except KilnError:
                raise
            except Exception:  # ONNX Runtime raises exception types of its own
                if not is_newer(self.graph):
                    raise
        self._use_evaluator(path)

    def _use_evaluator(self, path: Path) -> None:
        self._evaluate = evaluator(onnx.load(path))
        self.about = {"name": "onnx", "version": onnx.__version__, "settings": {"evaluator": "NumPy"}}

    def _open_session(self, path: Path, graph: onnx.ModelProto) -> None:
        import onnxruntime

        own_parts = onnx_parts(path, graph, lambda content: _by_name(plain_session(content)))
        if own_parts is not None:
            self._evaluate = own_parts.run
        else:
            exact = exact_content(path, graph)
            session = plain_session(
                str(path) if exact is None else exact, folder=path.parent if exact else None
            )
            names = [value.name for value in session.get_inputs()]
            self._evaluate = lambda inputs: session.run(
                None, {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
            )
        self.about = {
            "name": "onnxruntime",
            "version": onnxruntime.__version__,
            "settings": {"graph_optimization_level": "ORT_DISABLE_ALL", "provider": "CPU", "threads": 1},
        }

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        # NumPy's functions return plain numbers in place of tensors without axes.
        arrays = [np.asarray(value) for value in inputs]
        try:
            return [np.asarray(value) for value in self._evaluate(arrays)]
        except Exception:  # some types of newer operators are refused in the first run only
            if self.about["name"] == "onnx" or self.graph is None or not is_newer(self.graph):
                raise
        self._use_evaluator(self.path)
        return [np.asarray(value) for value in self._evaluate(arrays)]


def _by_name(session: Any) -> Callable[[Mapping[str, Array]], list[Array]]:
    """A session as a function of its inputs by name."""
    return lambda tensors: [np.asarray(value) for value in session.run(None, dict(tensors))]


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
        self.precision = _coarsest([name for kind, name in _HALVES.items() if kind in kinds])
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
        return [
            # LiteRT's Python interface does not read tensors without elements.
            np.empty(entry["shape"], entry["dtype"])
            if 0 in entry["shape"]
            else self._interpreter.get_tensor(entry["index"])
            for entry in self._interpreter.get_output_details()
        ]
