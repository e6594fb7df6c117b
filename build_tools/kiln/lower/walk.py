"""From the fused Relax module to steps: which kernel runs on which tensors, in which order."""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from kiln.errors import KilnError
from kiln.frontend.counted.sizes import AFTER, COUNT
from kiln.frontend.state import STATES
from kiln.graph.bindings import operator
from kiln.lower.branch_steps import BranchSteps
from kiln.lower.branches import ordered
from kiln.lower.counts import in_order
from kiln.lower.external_steps import Externals
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.index_checks import CHECK
from kiln.lower.loop_steps import LoopSteps
from kiln.lower.own_steps import add_own, is_own
from kiln.lower.schema import CountedSize, IndexCheck, KernelArgument, KernelRecord, SizeArgument, Step
from kiln.lower.steps import SIZE_PARAMETER, LoweredTensor, Steps
from kiln.lower.views.steps import Placement
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Array
from kiln.tir.symbols import simplify


def _is_tensor(argument: Any) -> bool:
    """Whether an argument of a call is a tensor; all other arguments are sizes."""
    return isinstance(argument.ty, relax.TensorType)


def _is_empty(ty: Any) -> bool:
    """Whether no tensor of type `ty`, a tensor or tuple type, has elements, so that nothing is computed."""
    fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    return all(any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in field.shape) for field in fields)


class Builder:
    """Walks `main` once and adds its steps to `groups.steps`.

    `ops`: op info by function name. `params`: values of the parameters of `main` that follow its inputs.
    `placement`: adds the steps of tensors that are stored inside larger ones; None: no tensor is.
    """

    def __init__(
        self, mod: tvm.IRModule, ops: dict[str, list[OpInfo]], params: dict[str, Array],
        groups: GroupLowering, placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.mod, self.ops, self.constants = mod, ops, params
        self.groups, self.steps, self.model = groups, groups.steps, groups.dims.model
        self._placement = placement
        self._externals = Externals(mod, groups)
        self._loops = LoopSteps(groups, on_gpu=placement is None)
        self._branches = BranchSteps(groups)
        self._values: dict[Any, Any] = {}  # Relax variable → tensor name, or a list of them

    def build(self) -> Steps:
        """Add the steps of `main`; returns all steps, without unused tensors."""
        self.walk()
        self.steps.drop_unused()
        if not any(step.branch is not None for step in self.steps.steps):  # else they are in order
            self.groups.rearrange(in_order(self.steps.record()))
        return self.steps

    def walk(self) -> None:
        """Add the steps of `main` in the order of the graph."""
        main = self.mod["main"]
        count = int(main.attrs["num_input"])
        for index, variable in enumerate(main.params):
            name = variable.name
            if isinstance(variable.ty, relax.ShapeType):  # only there to define variables
                continue
            if index < count:
                shape = self.groups.dims.shape(variable.ty)
                tensor = self.steps.add(
                    LoweredTensor(f"input{index}", str(variable.ty.dtype), shape, "input")
                )
                self.steps.inputs.append(tensor.name)
            else:
                tensor = self.steps.constant(name, self.constants[name])
            self._values[variable] = tensor.name
        for item in ordered(main):
            if item.mark:
                values = self._branches.add(item.mark, item.binding.value, self._value)
                self._values[item.binding.var] = values
            else:
                self._values[item.binding.var] = self._bind(item.binding.var, item.binding.value)
        outputs = self._value(main.body.body)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        returned = len(outputs) - int(main.attrs.get(STATES, 0))
        for name in outputs[:returned]:
            self.steps.outputs.append(self._own_output(name))
        # Values of the next run: copied at the end, where no step reads those of this run any more. Planning
        # leaves out the copies that it finds unnecessary.
        for name in outputs[returned:]:
            if self.steps.root(name).kind == "input":  # perhaps a value that another copy overwrites
                name = self.groups.copy(name)
            self.steps.outputs.append(self.groups.copy(name))

    def _new(self, ty: Any, alias: str | None = None) -> str:
        """Add a tensor of type `ty` and return its name."""
        return self.steps.new(str(ty.dtype), self.groups.dims.shape(ty), alias=alias).name

    def _value(self, expr: relax.Expr) -> Any:
        """The tensor name of an expression, or a list of names for a tuple."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, GenericConst):
            return self.steps.constant(f"const{len(self.steps.params)}", expr.value.numpy()).name
        raise KilnError(f"{self.model}: cannot compile the expression {type(expr).__name__} in main")

    def _bind(self, var: relax.Var, value: Any) -> Any:
        """Add the steps that compute `value`, which `var` is bound to; a tensor name or a list of names."""
        if not isinstance(value, relax.Call):
            return self._value(value)
        name = operator(value)
        if name == "relax.reshape":
            return self._new(value.ty, alias=self._value(value.args[0]))
        if name == "relax.call_dps_packed":
            arguments = value.args[1].fields
            inputs = [self._value(item) for item in arguments if _is_tensor(item)]
            numbers = [size for item in arguments if not _is_tensor(item) for size in item.values]
            if str(value.args[0].global_symbol).startswith(CHECK):
                return self._check(value, inputs[0], numbers)
            if self._loops.is_loop(value):
                return self._loops.add(value, inputs)
            if is_own(value):
                return add_own(self.groups, value, inputs, numbers, on_gpu=self._placement is None)
            if str(value.args[0].global_symbol) == AFTER:
                return self._new(value.ty, alias=inputs[0])
            if str(value.args[0].global_symbol).startswith(COUNT):
                return self._count(value, *inputs)
            return self._externals.add(value, inputs, numbers)
        if name != "relax.call_tir":
            library = value.args[0].global_symbol if name == "relax.call_pure_packed" else None
            called = library or (name or str(value.op)).removeprefix("relax.")
            raise KilnError(f"{self.model}: operator '{called}' cannot be compiled{self._origin(called)}")
        return self._call(var, value)

    def _check(self, call: relax.Call, indices: str, numbers: list[Any]) -> str:
        """Add a step that checks the tensor `indices`; returns the name of an alias of `indices`."""
        about = json.loads(str(call.args[0].global_symbol).removeprefix(CHECK))
        dtype = str(call.ty.dtype)
        symbol, result = f"kiln_check_indices_{dtype}", self._new(call.ty, alias=indices)
        if not self.steps.has_kernel(symbol):
            arguments = [KernelArgument(dtype=dtype, const=True), *([SIZE_PARAMETER] * len(numbers))]
            self.steps.kernels.append(
                KernelRecord(symbol=symbol, args=arguments, parallel=False, family="check", check=True)
            )
        dims = self.groups.dims
        self.steps.steps.append(
            Step(
                kernel=symbol,
                args=[result, *(SizeArgument(dim=dims.size(simplify(number))) for number in numbers)],
                writes=[result],
                label=f"indices of {about['op']}",
                check=IndexCheck(**about),
                macs=0,
            )
        )
        return result

    def _count(self, call: relax.Call, count: str, rows: str) -> str:
        """Add a step that makes the value of tensor `count` a size of the run.

        Returns the name of an alias of tensor `rows` that has as many rows as are counted.
        """
        about = json.loads(str(call.args[0].global_symbol).removeprefix(COUNT))
        if self.groups.counts_refused:
            raise KilnError(
                f"{self.model}: tensor '{about['tensor']}': its size is counted in the run, which "
                f"{self.groups.counts_refused}"
            )
        symbol, result = "kiln_count", self._new(call.ty, alias=rows)
        if not self.steps.has_kernel(symbol):
            arguments = [KernelArgument(dtype=dtype, const=True) for dtype in ("int64", "uint8")]
            self.steps.kernels.append(
                KernelRecord(symbol=symbol, args=arguments, parallel=False, family="count", check=True)
            )
        self.steps.steps.append(
            Step(
                kernel=symbol,
                args=[count, result],
                writes=[result],
                label=f"count of {about['tensor']}",
                counts=CountedSize(**about),
                macs=0,
            )
        )
        return result

    def _origin(self, operator: str) -> str:
        """Text ': NODE, …' of the file's nodes that became `operator`; empty if the importer lists none."""
        nodes = json.loads(str(self.mod["main"].attrs.get("kiln.nodes", "{}"))).get(operator)
        return f": {', '.join(nodes)}" if nodes else ""

    def _call(self, var: relax.Var, call: relax.Call) -> Any:
        """Add the steps of the fused group `call`; returns the tensor name of its result, or a list."""
        name = call.args[0].name_hint
        inputs = [self._value(item) for item in call.args[1].fields if _is_tensor(item)]
        func, ops = self._function(call), self.ops.get(name, [])
        if self._placement is not None and not _is_empty(call.ty):
            placed = self._placement.add(var, func, ops, inputs)
            if placed is not None:
                return placed
        several = isinstance(call.ty, relax.TupleType)
        outputs = [self._new(ty) for ty in (call.ty.fields if several else [call.ty])]
        if _is_empty(call.ty):
            return outputs if several else outputs[0]
        self.groups.add(func, ops, inputs, outputs)
        return outputs if several else outputs[0]

    def _function(self, call: relax.Call) -> tirx.PrimFunc:
        """The function of `call`; `groups.given` receives the values of its parameters that are sizes."""
        func = self.mod[call.args[0]]
        scalars = [param for param in func.params if not tirx.is_buffer_var(param)]
        if not scalars:
            return func
        sizes = [item for item in call.args[1].fields if not _is_tensor(item)]
        if len(call.args) > 2:
            sizes += list(call.args[2].values)
        passed = dict(zip(scalars, sizes, strict=True))
        self.groups.given[func] = {param: self.groups.dims.size(value) for param, value in passed.items()}
        return func

    def _own_output(self, name: str) -> str:
        """The tensor name of an output: `name`, or a copy where its memory is not the output's alone.

        Copied are inputs, parameters, tensors that another output shares, and tensors with slack.
        """
        root = self.steps.root(name)
        returned = {self.steps.root(output).name for output in self.steps.outputs}
        if root.kind == "activation" and root.name not in returned and not root.slack:
            return name
        return self.groups.copy(name)
