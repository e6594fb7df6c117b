"""From the fused Relax module to steps: which kernel runs on which tensors, in which order.

The result is plain data; nothing after this stage needs to know Relax.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from kiln.errors import KilnError
from kiln.graph.bindings import operator
from kiln.kernels import abi
from kiln.kernels.families import Part, kernels_of
from kiln.kernels.gemm_int import narrow
from kiln.kernels.halo import View, border, find_views, spatial_padding, with_views
from kiln.kernels.kernel import Array, Machine
from kiln.kernels.opinfo import OpInfo, refusal


@dataclass
class Tensor:
    """A tensor of the plan. `alias`: it is the same memory as that tensor, seen with another shape."""

    name: str
    dtype: str
    shape: list[int]
    kind: str  # input, param, activation, workspace
    alias: str | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * ((int(tvm.DataType(self.dtype).bits) + 7) // 8)

    def describe(self) -> dict[str, Any]:
        return {**self.__dict__, "bytes": self.nbytes}


@dataclass
class Steps:
    """All that later stages need: tensors, kernels, steps, parameters, and the lowered functions."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Array] = field(default_factory=dict)
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "tensors": [tensor.describe() for tensor in self.tensors.values()],
            "kernels": self.kernels,
            "steps": self.steps,
        }


class Builder:
    """Walks `main` once and adds steps."""

    def __init__(
        self, model: str, mod: tvm.IRModule, ops: dict[str, list[OpInfo]], params: dict[str, Array],
        machine: Machine, target: tvm.target.Target,
    ) -> None:  # fmt: skip
        self.model, self.mod, self.ops, self.machine, self.target = model, mod, ops, machine, target
        self.constants = params
        self.result = Steps()
        self._by_hash: dict[int, list[tuple[tirx.PrimFunc, str]]] = {}
        self._groups: dict[Any, tuple[tirx.PrimFunc, list[tuple[Part, str, list[tuple[str, int]]]]]] = {}
        self._views = find_views(mod, ops)
        self._view_of: dict[str, View] = {}  # tensors that are read through a view
        self._values: dict[Any, Any] = {}  # Relax variable → tensor name, or a list of them
        self._whole: dict[str, str] = {}  # a tensor read through a view → the one it lies in
        self._count = 0

    def build(self) -> Steps:
        """The steps of `main`."""
        main = self.mod["main"]
        count = int(main.attrs["num_input"])
        for index, variable in enumerate(main.params):
            name = variable.name
            if index < count:
                tensor = self._tensor(f"input{index}", variable.ty, "input")
                self.result.inputs.append(tensor.name)
            else:
                tensor = self._constant(name, self.constants[name])
            self._values[variable] = tensor.name
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._bind(binding.var, binding.value)
        outputs = self._value(main.body.body)
        for index, name in enumerate(outputs if isinstance(outputs, list) else [outputs]):
            self.result.outputs.append(self._own_output(index, name))
        self._drop_unused()
        return self.result

    def _tensor(self, name: str, ty: Any, kind: str, alias: str | None = None) -> Tensor:
        shape = [int(size) for size in ty.shape]
        tensor = Tensor(name, str(ty.dtype), shape, kind, alias)
        self.result.tensors[name] = tensor
        return tensor

    def _constant(self, name: str, value: Array) -> Tensor:
        tensor = Tensor(name, str(value.dtype), list(value.shape), "param")
        self.result.tensors[name] = tensor
        self.result.params[name] = value
        return tensor

    def _value(self, expr: Any) -> Any:
        """The tensor name of an expression, or a list of names for a tuple."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, GenericConst):
            return self._constant(f"const{len(self.result.params)}", expr.value.numpy()).name
        raise KilnError(f"{self.model}: cannot compile the expression {type(expr).__name__} in main")

    def _bind(self, var: Any, value: Any) -> Any:
        if not isinstance(value, relax.Call):
            return self._value(value)
        name = operator(value)
        if name == "relax.reshape":
            source = self._value(value.args[0])
            return self._tensor(self._new_name(), value.ty, "activation", alias=source).name
        if name != "relax.call_tir":
            library = value.args[0].global_symbol if name == "relax.call_pure_packed" else None
            known = library or (name or str(value.op)).removeprefix("relax.")
            raise KilnError(f"{self.model}: operator '{known}' cannot be compiled{self._origin(known)}")
        return self._call(var, value)

    def _origin(self, operator: str) -> str:
        """Which nodes of the model's file became an operator, where the importer has left that."""
        nodes = json.loads(str(self.mod["main"].attrs.get("kiln.nodes", "{}"))).get(operator)
        return f": {', '.join(nodes)}" if nodes else ""

    def _call(self, var: Any, call: Any) -> Any:
        variable = call.args[0]
        inputs = [self._value(item) for item in call.args[1].fields]
        ops = self.ops.get(variable.name_hint, [])
        if len(inputs) == 1 and inputs[0] in self._view_of and self._is_border(ops, call, inputs[0]):
            return self._whole[inputs[0]]
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        view = self._views.get(var)
        if view is not None:
            return self._haloed(call, inputs, ops, view)
        outputs = [self._tensor(self._new_name(), ty, "activation").name for ty in types]
        self._group(self.mod[variable], ops, inputs, outputs, variable.name_hint)
        return outputs if isinstance(call.ty, relax.TupleType) else outputs[0]

    def _new_name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _is_border(self, ops: list[OpInfo], call: Any, name: str) -> bool:
        """Whether this padding is the one whose result the tensor's producer has written already."""
        padding = spatial_padding(ops)
        view = self._view_of[name]
        shape = tuple(int(size) for size in call.ty.shape)
        return padding is not None and (shape, tuple(padding[0][0::2]), padding[1]) == (
            view.full,
            view.origin,
            view.value,
        )

    def _haloed(self, call: Any, inputs: list[str], ops: list[OpInfo], view: View) -> str:
        """Add a group whose result lies inside a padded tensor, and the step that fills the border."""
        whole = Tensor(self._new_name(), str(call.ty.dtype), list(view.full), "activation")
        inner = Tensor(
            self._new_name(), whole.dtype, [int(s) for s in call.ty.shape], "activation", whole.name
        )
        self.result.tensors |= {whole.name: whole, inner.name: inner}
        self._view_of[inner.name] = view
        self._whole[inner.name] = whole.name
        self._group(self.mod[call.args[0]], ops, inputs, [inner.name], call.args[0].name_hint)
        lanes = self.machine.lanes(whole.dtype)
        kernel = border(view, tuple(inner.shape), whole.dtype, lanes)
        buffer = kernel.func.params[0]
        info: OpInfo = {
            "name": "nn.pad",
            "kind": "injective",
            "attrs": {"pad_value": view.value},
            "out_dtype": whole.dtype,
        }
        part = Part(kernel, [buffer], 0)
        symbol, _ = self._kernel(part, [info])
        self._step(symbol, part, [info], [whole.name], [whole.name])
        return inner.name

    def _group(
        self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str], name: str
    ) -> None:
        """Add the steps of one fused group."""
        known = frozenset(i for i, item in enumerate(inputs) if self.result.tensors[item].kind == "param")
        places = [*inputs, *outputs]
        views = {i: self._view_of[item] for i, item in enumerate(places) if item in self._view_of}
        small = frozenset(i for i in known if narrow(self.result.params[inputs[i]]))
        key = (name, known, small, tuple(views.items()))
        if key not in self._groups:
            func = with_views(func, views)
            parts = []
            try:
                for part in kernels_of(func, ops, set(known), self.machine, views, small):
                    symbol, scratch = self._kernel(part, ops)
                    parts.append((part, symbol, scratch))
            except KilnError:
                raise
            except Exception as error:  # TVM's passes raise many kinds
                raise KilnError(f"{self.model}: {refusal(ops, error)}") from error
            self._groups[key] = func, parts
        func, parts = self._groups[key]
        self._run(func, parts, ops, places, outputs)

    def _run(
        self, func: tirx.PrimFunc, parts: list[Any], ops: list[OpInfo], names: list[str], outputs: list[str]
    ) -> None:
        """Add one step for each kernel of a group; `names` are the tensors behind its parameters."""
        places = dict(zip(func.params, names, strict=True))
        for part, symbol, scratch in parts:
            arguments = []
            for position, buffer in enumerate(part.buffers):
                if buffer not in places:
                    places[buffer] = self._new_name()
                    shape = [int(size) for size in buffer.shape]
                    self.result.tensors[places[buffer]] = Tensor(
                        places[buffer], str(buffer.dtype), shape, "activation"
                    )
                argument = places[buffer]
                if position in part.kernel.packs:
                    argument = self._pack(argument, part, position, symbol)
                arguments.append(argument)
            for dtype, size in scratch:
                scratch_name = self._new_name()
                elements = size * 8 // tvm.DataType(dtype).bits
                self.result.tensors[scratch_name] = Tensor(scratch_name, dtype, [elements], "workspace")
                arguments.append(scratch_name)
            written = [places[b] for b in part.buffers if places[b] in outputs or b not in func.params]
            if part.kernel.family == "loops":
                written = [places[part.buffers[-1]]]
            self._step(symbol, part, ops, arguments, written)

    def _step(
        self, symbol: str, part: Part, ops: list[OpInfo], arguments: list[str], written: list[str]
    ) -> None:
        label = "+".join(op["name"].removeprefix("nn.") for op in ops) or part.kernel.family
        self.result.steps.append(
            {
                "kernel": symbol,
                "extent": part.kernel.tasks or 0,
                "args": arguments,
                "writes": written,
                "in_place": [arguments[position] for position in part.kernel.in_place],
                "label": label,
                "attrs": ops[0]["attrs"] if ops else {},
                "macs": part.macs,
            }
        )

    def _pack(self, name: str, part: Part, position: int, symbol: str) -> str:
        """The tensor that holds the packed form of a parameter; made once."""
        value = self.result.params[name]
        packed = np.ascontiguousarray(part.kernel.packs[position](value))
        new_name = f"{name}.{symbol}"
        if new_name not in self.result.params:
            self._constant(new_name, packed)
        return new_name

    def _kernel(self, part: Part, ops: list[OpInfo]) -> tuple[str, list[tuple[str, int]]]:
        """Lower a kernel, or find the equal one, and give it its symbol."""
        lowered = abi.lower(part.kernel, self.target)
        digest = int(tvm_ffi.structural_hash(lowered.func))
        for other, symbol in self._by_hash.get(digest, []):
            if tvm_ffi.structural_equal(other, lowered.func):
                return symbol, lowered.scratch
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"{self.model}_{stem}_{len(self.result.kernels)}"
        self._by_hash.setdefault(digest, []).append((lowered.func, symbol))
        self.result.functions[symbol] = lowered.func.with_attr("global_symbol", symbol)
        outputs = {id(b) for b in part.buffers[-1:]}
        arguments = [
            {
                "dtype": str(buffer.dtype),
                "const": id(buffer) not in outputs and part.kernel.family != "opaque",
            }
            for buffer in part.buffers
        ]
        arguments += [{"dtype": dtype, "const": False} for dtype, _size in lowered.scratch]
        self.result.kernels.append(
            {
                "symbol": symbol,
                "args": arguments,
                "parallel": part.kernel.tasks is not None,
                "family": part.kernel.family,
                "ops": ops,
                "flops": 2 * part.macs,
            }
        )
        return symbol, lowered.scratch

    def _root(self, name: str) -> Tensor:
        tensor = self.result.tensors[name]
        while tensor.alias is not None:
            tensor = self.result.tensors[tensor.alias]
        return tensor

    def _own_output(self, index: int, name: str) -> str:
        """The tensor of output `index`: one that no input, parameter or other output shares memory with."""
        root = self._root(name)
        taken = {self._root(other).name for other in self.result.outputs}
        if root.kind == "activation" and root.name not in taken:
            return name
        source = self.result.tensors[name]
        made = Tensor(self._new_name(), source.dtype, source.shape, "activation")
        self.result.tensors[made.name] = made
        data = te.placeholder(source.shape, dtype=source.dtype, name="data")
        copy = te.compute(source.shape, lambda *at: data(*at), name="copy")
        func = te.create_prim_func([data, copy])
        info: OpInfo = {"name": "copy", "kind": "elementwise", "attrs": {}, "out_dtype": source.dtype}
        self._group(func, [info], [name], [made.name], f"copy_output{index}")
        return made.name

    def _drop_unused(self) -> None:
        """Forget parameters that only their packed forms stand for."""
        used = {name for step in self.result.steps for name in step["args"]}
        used |= set(self.result.inputs) | set(self.result.outputs)
        for name in list(used):
            while (alias := self.result.tensors[name].alias) is not None:
                used.add(alias)
                name = alias
        self.result.tensors = {n: t for n, t in self.result.tensors.items() if n in used}
        self.result.params = {n: v for n, v in self.result.params.items() if n in used}
