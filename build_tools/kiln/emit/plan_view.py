"""The plan, checked and arranged for the templates.

The types of plan.json's entries are checked where it is read (kiln/plan/schema.py). It comes from another
program: an entry with which the generated C would read or write outside its memory, or would not compile, is
rejected here with its place in plan.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kiln.config import cpu_features, sizes
from kiln.config.c_words import can_name_model
from kiln.config.target import Cuda
from kiln.emit import c_text
from kiln.emit.buckets import Selection, bucket_box, bucket_range, selection
from kiln.emit.cases import CaseCode, special_cases
from kiln.emit.plan_ports import (
    DimensionCode,
    PortCode,
    PortsCode,
    interface_digest,
    read_ports,
    require,
)  # fmt: skip
from kiln.emit.plan_steps import KernelCode, StepCode, StepMaker
from kiln.errors import KilnError
from kiln.lower.schema import KernelRecord, VariantFeatures
from kiln.plan.schema import Parameters, PlacedRegion, PlacedState, Plan, PlannedBucket
from kiln.plan.variants import step_of

_MAX_LIBRARIES = 4  # KILN_CUDA_LIBRARIES of kiln_cuda.h
_CHECKS = ("kiln_check_indices_int32", "kiln_check_indices_int64", "kiln_count", "kiln_loop", "kiln_branch")


@dataclass(frozen=True)
class BucketCode:
    """One bucket of the plan, as the templates need it.

    `box`: least and greatest size of each dimension in one flat list; None if sizes do not select the bucket.
    `shown`: when the bucket runs, in words; `special`: whether it is a special case of another bucket.
    """

    name: str
    arena_bytes: int
    steps: list[StepCode]
    box: list[int] | None
    shown: str
    special: bool

    @property
    def has_graph(self) -> bool:
        """Whether the bucket can run as a CUDA graph: its launches are the same in every run."""
        return not any(step.open for step in self.steps)


@dataclass(frozen=True)
class PreparedCall:
    """A subgraph that its library prepares in kiln_open.

    `shown`: backend and subgraph, for messages; `args`: C expressions of the constants' addresses.
    """

    symbol: str
    shown: str
    args: list[str]


@dataclass(frozen=True)
class VariantView:
    """The functions of one variant of the target.

    `number`: appended to the names of its C functions; empty for the first variant. `features`: processor
    features that its kernels need; `cpu_mask`: C constant with their bits of kiln_cpu_features.
    """

    name: str
    number: str
    features: Sequence[str]
    cpu_mask: str
    buckets: list[BucketCode]


@dataclass(frozen=True)
class PlanView:
    """The whole plan, as the templates need it. `in_image`: whether the code must run at any address."""

    name: str
    target: str
    hash: str
    threads: str
    ports: PortsCode
    variants: list[VariantView]
    selection: Selection | None
    cases: list[CaseCode]
    kernels: list[KernelCode]
    opened: list[PreparedCall]
    params: Parameters
    cuda: Cuda | None = None
    states: Sequence[PlacedState] = ()
    state_bytes: int = 0
    regions: Sequence[PlacedRegion] = ()
    in_image: bool = False

    @property
    def digest_bytes(self) -> list[int]:
        """SHA-256 of everything that `kiln_compatible` compares, except the ranges of dimensions."""
        return list(interface_digest(self.ports))

    @property
    def image(self) -> str:
        """C symbol of the parameters that are linked in, with their header."""
        return self.params.image or f"{self.name}_params_image"

    @property
    def first_part_bytes(self) -> int:
        """Bytes of the parameters in the image that kiln_open is given: all, unless they are split."""
        return self.params.parts[0].bytes if self.params.parts else self.params.bytes

    @property
    def buckets(self) -> list[BucketCode]:
        """The buckets, with the steps of the first variant; other variants differ in their kernels alone."""
        return self.variants[0].buckets

    @property
    def launched(self) -> list[KernelCode]:
        """Kernels that the plan launches; on a GPU without functions that call a library."""
        return [kernel for kernel in self.kernels if kernel.symbol not in self._computed]

    @property
    def images(self) -> list[str]:
        """On a GPU, the C symbols of the modules: that of the CUDA C, then one for each kernel in PTX."""
        own_modules = [kernel for kernel in self.kernels if kernel.module]
        return [cuda_image(self.name), *(cuda_image(self.name, kernel.symbol) for kernel in own_modules)]

    @property
    def modules_differ(self) -> bool:
        """Whether there is a kernel in PTX."""
        return len(self.images) > 1

    @property
    def computed(self) -> list[KernelCode]:
        """On a GPU, the kernels that are functions which call a library."""
        return [kernel for kernel in self.kernels if kernel.symbol in self._computed]

    @property
    def libraries(self) -> list[str]:
        """On a GPU, the names of the backends whose libraries compute steps."""
        return sorted({kernel.backend for kernel in self.computed})

    @property
    def calls_count(self) -> int:
        """Number of steps that a GPU library computes (see `libraries`)."""
        return sum(bool(step.library) for bucket in self.buckets for step in bucket.steps)

    @property
    def _computed(self) -> set[str]:
        return {step.symbol for bucket in self.buckets for step in bucket.steps if step.library}

    def kernel_number(self, symbol: str) -> int:
        """Index of a kernel in `launched`."""
        return [kernel.symbol for kernel in self.launched].index(symbol)

    @property
    def inputs(self) -> list[PortCode]:
        return self.ports.inputs

    @property
    def outputs(self) -> list[PortCode]:
        return self.ports.outputs

    @property
    def dims(self) -> list[DimensionCode]:
        return self.ports.dims

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def arena_bytes(self) -> int:
        return max(bucket.arena_bytes for bucket in self.buckets)

    @property
    def hash_bytes(self) -> list[int]:
        return list(bytes.fromhex(self.hash))


def cuda_image(model: str, kernel: str = "") -> str:
    """C symbol of a model's GPU image; with `kernel`, of the module of that kernel, which is in PTX."""
    return f"{model}_cuda_module_{kernel}" if kernel else f"{model}_cuda_image"


def plan_view(plan: Plan, payload_bytes: int, *, in_image: bool = False) -> PlanView:
    """Check that `plan` is consistent and has `payload_bytes` of parameters. Raises KilnError if not.

    `in_image`: the code is to run at any address.
    """
    params, ports = plan.params, read_ports(plan, _taken_names(plan))
    if params.parts:
        part_bytes = sum(stored_part.bytes for stored_part in params.parts)
        require(part_bytes == params.bytes, "params.parts", f"{part_bytes} bytes", f"{params.bytes} in all")
    require(params.bytes == payload_bytes, "params.bytes", params.bytes, f"{payload_bytes} as in params.raw")

    kernels = [_kernel(kernel) for kernel in plan.kernels]
    symbols = {kernel.symbol: kernel for kernel in kernels}
    require(len(symbols) == len(kernels), "kernels", "a symbol twice", "each once")
    on_gpu = plan.cuda is not None
    _check_states(plan)
    maker = StepMaker(
        symbols, ports, params, plan.threads == "pthread", on_gpu, plan.states, plan.state_bytes
    )
    cases = special_cases(plan.buckets, ports, params, on_gpu)
    variants = _variants(plan, maker, cases)
    buckets = variants[0].buckets
    distinct = len({bucket.name.upper() for bucket in buckets}) == len(buckets)
    require(distinct, "buckets", "a name twice", "each once, upper and lower case being the same")

    called = {step.symbol: step for each in variants for bucket in each.buckets for step in bucket.steps}
    libraries = len({step.library for step in called.values() if step.library})
    require(
        libraries <= _MAX_LIBRARIES, "kernels", f"{libraries} libraries on a GPU", f"at most {_MAX_LIBRARIES}"
    )
    return PlanView(
        plan.name, plan.target, plan.model_hash, plan.threads, ports, variants,
        selection(ports.dims, plan.buckets), cases, _numbered([k for k in kernels if k.symbol in called]),
        _prepared(plan.kernels, called), params, plan.cuda, plan.states, plan.state_bytes, plan.regions,
        in_image,
    )  # fmt: skip


def _numbered(kernels: Sequence[KernelCode]) -> list[KernelCode]:
    """The kernels, those in PTX with the numbers of their modules, 1, 2, …."""
    count = itertools.count(1)
    return [replace(kernel, module=next(count)) if kernel.module else kernel for kernel in kernels]


def _check_states(plan: Plan) -> None:
    """Raise KilnError for a value outside of the state, or whose first value is outside of the parameters."""
    for index, state in enumerate(plan.states):
        where, end = f"states[{index}]", state.offset + state.bytes
        require(end <= plan.state_bytes, where, f"bytes {state.offset}..{end}", f"0..{plan.state_bytes}")
        if state.initial is not None:
            last = state.initial + state.bytes
            require(last <= plan.params.bytes, f"{where}.initial", last, f"0..{plan.params.bytes}")


def _taken_names(plan: Plan) -> set[str]:
    """C names that inputs and outputs cannot have. Raises KilnError for a model's name that C cannot use."""
    name = c_text.check_name(plan.name, "plan.json: name")
    require(can_name_model(name), "name", name, "any other: the generated source uses this one itself")
    return {"session", "inputs", "outputs", "result", "detail", "sizes", "model", "status", name}


def _variants(plan: Plan, maker: StepMaker, cases: Sequence[CaseCode]) -> list[VariantView]:
    """The variants of the plan; one for a plan without variants. Raises KilnError for unknown features."""
    bits_of_arch = cpu_features.BITS
    arch, variants = (None, [VariantFeatures(name="base")])
    if plan.cpu is not None:
        arch, variants = plan.cpu.arch, plan.cpu.variants
    views = []
    for number, variant in enumerate(variants):
        mask = "0"
        if variant.features:
            if arch not in bits_of_arch:
                raise KilnError(f"plan.json: cpu.arch: {arch}, allowed: {', '.join(bits_of_arch)}")
            for name in variant.features:
                require(
                    name in bits_of_arch[arch], "cpu.variants: features", name, ", ".join(bits_of_arch[arch])
                )
            mask = f"UINT64_C({cpu_features.mask(arch, variant.features):#x})"
        buckets = [_bucket(plan, index, maker, cases, variant.name) for index in range(len(plan.buckets))]
        views.append(VariantView(variant.name, str(number or ""), variant.features, mask, buckets))
    return views


def _bucket(plan: Plan, number: int, maker: StepMaker, cases: Sequence[CaseCode], variant: str) -> BucketCode:
    """Bucket `number` of the plan with the steps of `variant`. Raises KilnError for a bad name or step."""
    bucket, dims = plan.buckets[number], maker.ports.dims
    c_text.check_name(bucket.name + "_", f"plan.json: buckets[{number}].name")
    of_variant = bucket.model_copy(update={"steps": [step_of(step, variant) for step in bucket.steps]})
    steps = [maker.step(of_variant, number, index) for index in range(len(bucket.steps))]
    box = bucket_box(bucket, dims) if dims else None
    special = next((case for case in cases if case.bucket == number), None)
    if special is None:
        return BucketCode(bucket.name, bucket.arena_bytes, steps, box, _sizes_text(bucket, dims), False)
    # A session's memory is sized before the inputs are seen: a special case reports its bucket's arena.
    general = plan.buckets[special.general]
    shown = f"for {general.name} when {special.shown}"
    return BucketCode(bucket.name, general.arena_bytes, steps, box, shown, True)


def _prepared(kernels: Sequence[KernelRecord], steps: Mapping[str, StepCode]) -> list[PreparedCall]:
    """Kernels that their library prepares in kiln_open; all steps of a kernel have the same constants.

    `steps`: one step of each kernel that is used, by symbol.
    """
    prepared = []
    for kernel in kernels:
        symbol, code = kernel.symbol, kernel.external
        if symbol not in steps or code is None or code.opens is None:
            continue
        args = [steps[symbol].args[position][0] for position in code.opens]
        for arg in args:
            require(arg.startswith("kiln_at_params("), f"kernel '{symbol}': opens", arg, "parameters")
        prepared.append(PreparedCall(symbol, f"{code.backend}: {code.key}", args))
    return prepared


def _sizes_text(bucket: PlannedBucket, dims: Sequence[DimensionCode]) -> str:
    """Sizes of a bucket in words, such as `batch 1, seq 17..64`."""
    ranges = {dim.name: bucket_range(bucket, dim) for dim in dims}
    text = sizes.ranges_text({name: {"min": low, "max": high} for name, (low, high) in ranges.items()})
    return text or "everything else"


def _kernel(kernel: KernelRecord) -> KernelCode:
    """A kernel as C. Raises KilnError for a symbol, or types of parameters, that C does not have."""
    symbol, external = kernel.symbol, kernel.external
    if kernel.check:  # a function of the runtime
        require(symbol in _CHECKS, "kernels", symbol, ", ".join(_CHECKS))
    else:
        c_text.check_name(symbol, "plan.json: kernels")
    types = []
    for arg in kernel.args:
        base = c_text.c_type(arg.dtype, f"plan.json: kernel '{symbol}'")
        good = not arg.scalar or arg.dtype in ("int32", "int64")
        require(good, f"kernel '{symbol}': scalar", arg.dtype, "int32, int64")
        types.append(base if arg.scalar else f"{'const ' if arg.const else ''}{base} *")
    returns = kernel.check or (external is not None and external.opens is not None)
    return KernelCode(
        symbol, types, kernel.args, kernel.parallel, "int32_t" if returns else "void", kernel.check,
        "" if external is None else external.backend, " + ".join(op.name for op in kernel.ops),
        0 if external is None else external.dynamic_bytes or 0,
        int(external is not None and external.ptx is True),
        int(external is None or external.ptx is True),
    )  # fmt: skip
