"""plan.json, checked and arranged for the templates.

The plan comes from another program: an entry with which the generated C would read or write outside its
memory, or would not compile, is rejected here with its place in plan.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.config import cpu_features
from kiln.emit import c_text
from kiln.emit.buckets import Selection, bucket_box, bucket_range, selection
from kiln.emit.cases import Case, special_cases
from kiln.emit.plan_ports import Port, Ports, read_ports, require
from kiln.emit.plan_steps import Step, StepMaker
from kiln.errors import KilnError
from kiln.plan.variants import step_of

# Static names in plan.c, which a model's name must not be.
_OWN = (
    "arenas_on_gpu|libraries_on_gpu|buckets|derive_sizes|dimensions|functions_on_gpu|has_graph|hash|kernel_names|on_gpu|"
    "open_failed|open_libraries|run_step\\d*|variants|"
    "select_bucket|shared_on_gpu|special_bucket|tensor_bytes"
)
_MAX_LIBRARIES = 4  # KILN_CUDA_LIBRARIES of kiln_cuda.h
_INDEX_CHECKS = ("kiln_check_indices_int32", "kiln_check_indices_int64")
_STORAGES = ("embedded", "section", "file")


@dataclass(frozen=True)
class Bucket:
    """One bucket of the plan, as the templates need it.

    `box`: least and greatest size of each dimension in one flat list; None if sizes do not select the bucket.
    `shown`: when the bucket runs, in words; `special`: whether it is a special case of another bucket.
    """

    name: str
    arena_bytes: int
    steps: list[Step]
    box: list[int] | None
    shown: str
    special: bool

    @property
    def has_graph(self) -> bool:
        """Whether the bucket can run as a CUDA graph: its launches are the same in every run."""
        return not any(step.open for step in self.steps)


@dataclass(frozen=True)
class Opened:
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
    buckets: list[Bucket]


@dataclass(frozen=True)
class View:
    """The whole plan, as the templates need it."""

    name: str
    target: str
    hash: str
    threads: str
    ports: Ports
    variants: list[VariantView]
    selection: Selection | None
    cases: list[Case]
    kernels: list[dict[str, Any]]
    opened: list[Opened]
    params: Mapping[str, Any]
    cuda: Mapping[str, Any] | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets, with the steps of the first variant; other variants differ in their kernels alone."""
        return self.variants[0].buckets

    @property
    def launched(self) -> list[dict[str, Any]]:
        """Kernels that the plan launches: on a GPU those of the image, not functions that call a library."""
        return [kernel for kernel in self.kernels if kernel["symbol"] not in self._computed]

    @property
    def computed(self) -> list[dict[str, Any]]:
        """On a GPU, the kernels that are functions which call a library."""
        return [kernel for kernel in self.kernels if kernel["symbol"] in self._computed]

    @property
    def libraries(self) -> list[str]:
        """On a GPU, the names of the backends whose libraries compute steps."""
        return sorted({str(kernel["backend"]) for kernel in self.computed})

    @property
    def calls_count(self) -> int:
        """Number of steps that a GPU library computes (see `libraries`)."""
        return sum(bool(step.library) for bucket in self.buckets for step in bucket.steps)

    @property
    def _computed(self) -> set[str]:
        return {step.symbol for bucket in self.buckets for step in bucket.steps if step.library}

    def kernel_number(self, symbol: str) -> int:
        """Index of a kernel in `launched`."""
        return [kernel["symbol"] for kernel in self.launched].index(symbol)

    @property
    def inputs(self) -> list[Port]:
        return self.ports.inputs

    @property
    def outputs(self) -> list[Port]:
        return self.ports.outputs

    @property
    def dims(self) -> list[dict[str, Any]]:
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


def plan_view(plan: Mapping[str, Any], payload_bytes: int) -> View:
    """Check that `plan` is consistent and has `payload_bytes` of parameters. Raises KilnError if not."""
    try:
        return _view(plan, payload_bytes)
    except KeyError as error:
        raise KilnError(f"plan.json: key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise KilnError(f"plan.json: value of a wrong type: {error}") from error


def _view(plan: Mapping[str, Any], payload_bytes: int) -> View:
    require(plan["format"] == 2, "format", plan["format"], "2")
    name = c_text.check_name(plan["name"], "plan.json: name")
    require(plan["threads"] in ("none", "pthread"), "threads", plan["threads"], "none, pthread")
    hexadecimal = re.fullmatch(r"[0-9a-f]{64}", plan["model_hash"]) is not None
    require(hexadecimal, "model_hash", plan["model_hash"], "64 hexadecimal digits")
    params = plan["params"]
    require(
        params["bytes"] == payload_bytes, "params.bytes", params["bytes"], f"{payload_bytes} as in params.raw"
    )
    require(params["storage"] in _STORAGES, "params.storage", params["storage"], ", ".join(_STORAGES))
    if params["storage"] == "section":
        good = re.fullmatch(r"[.A-Za-z_][.A-Za-z0-9_]*", str(params["section"])) is not None
        require(good, "params.section", params["section"], "letters, digits, . and _")

    own = re.fullmatch(
        r"(step\d*_of|box_of|cell_of_dim|(in|out)put_(tensors|\d+_shape|of))(_.*)?|" + _OWN, name
    )
    require(own is None, "name", name, "any other: the generated source uses this one itself")
    taken = {"session", "inputs", "outputs", "result", "detail", "sizes", name}
    ports = read_ports(plan, taken)

    kernels = [_kernel(kernel) for kernel in plan["kernels"]]
    symbols = {kernel["symbol"]: kernel for kernel in kernels}
    require(len(symbols) == len(kernels), "kernels", "a symbol twice", "each once")
    require(len(plan["buckets"]) > 0, "buckets", 0, "at least one")
    maker = StepMaker(symbols, ports, params, plan["threads"] == "pthread", "cuda" in plan)
    cases = special_cases(plan["buckets"], ports, params, "cuda" in plan)
    variants = _variants(plan, maker, cases)
    buckets = variants[0].buckets
    distinct = len({bucket.name.upper() for bucket in buckets}) == len(buckets)
    require(distinct, "buckets", "a name twice", "each once, upper and lower case being the same")
    called = {step.symbol: step for each in variants for bucket in each.buckets for step in bucket.steps}
    libraries = len({step.library for step in called.values() if step.library})
    require(
        libraries <= _MAX_LIBRARIES, "kernels", f"{libraries} libraries on a GPU", f"at most {_MAX_LIBRARIES}"
    )
    return View(
        name, plan["target"], plan["model_hash"], plan["threads"], ports, variants,
        selection(ports.dims, plan["buckets"]), cases, [k for k in kernels if k["symbol"] in called],
        _opened(plan["kernels"], called), params,
        plan.get("cuda"),
    )  # fmt: skip


def _variants(plan: Mapping[str, Any], maker: StepMaker, cases: Sequence[Case]) -> list[VariantView]:
    """The variants of the plan; one for a plan without variants. Raises KilnError for unknown features."""
    cpu = plan.get("cpu") or {"arch": None, "variants": [{"name": "base", "features": []}]}
    known, arch = cpu_features.BITS, cpu["arch"]
    require(len(cpu["variants"]) > 0, "cpu.variants", 0, "at least one")
    found = []
    for number, variant in enumerate(cpu["variants"]):
        features = variant["features"]
        require(arch in known or not features, "cpu.arch", arch, ", ".join(known))
        for name in features:
            require(name in known[arch], "cpu.variants: features", name, ", ".join(known[arch]))
        mask = f"UINT64_C({cpu_features.mask(arch, features):#x})" if features else "0"
        buckets = _buckets(plan, maker, cases, variant["name"])
        found.append(VariantView(variant["name"], str(number or ""), features, mask, buckets))
    return found


def _buckets(plan: Mapping[str, Any], maker: StepMaker, cases: Sequence[Case], variant: str) -> list[Bucket]:
    """The buckets of the plan with the steps of one variant."""
    buckets = []
    for number, bucket in enumerate(plan["buckets"]):
        c_text.check_name(bucket["name"] + "_", f"plan.json: buckets[{number}].name")
        own = {**bucket, "steps": [step_of(step, variant) for step in bucket["steps"]]}
        steps = [maker.step(own, number, at) for at in range(len(bucket["steps"]))]
        special = next((case for case in cases if case.bucket == number), None)
        # A session's memory is sized before the inputs are seen: a special case reports its bucket's arena.
        arena = (plan["buckets"][special.general] if special else bucket)["arena_bytes"]
        shown = _sizes_text(bucket, maker.ports.dims)
        if special:
            shown = f"for {plan['buckets'][special.general]['name']} when {special.shown}"
        box = bucket_box(bucket, maker.ports.dims) if maker.ports.dims else None
        buckets.append(Bucket(bucket["name"], arena, steps, box, shown, special is not None))
    return buckets


def _opened(kernels: Sequence[Mapping[str, Any]], steps: Mapping[str, Step]) -> list[Opened]:
    """Kernels that their library prepares in kiln_open; all steps of a kernel have the same constants.

    `steps`: one step of each kernel that is used, by symbol.
    """
    opened = []
    for kernel in kernels:
        symbol, about = kernel["symbol"], kernel.get("external", {})
        if symbol not in steps or about.get("opens") is None:
            continue
        args = [steps[symbol].args[place][0] for place in about["opens"]]
        for arg in args:
            require(arg.startswith("kiln_at_params("), f"kernel '{symbol}': opens", arg, "parameters")
        opened.append(Opened(symbol, f"{about['backend']}: {about['key']}", args))
    return opened


def _sizes_text(bucket: Mapping[str, Any], dims: Sequence[Mapping[str, Any]]) -> str:
    """Sizes of a bucket in words, such as `batch 1, seq 17..64`."""
    ranges = [(dim["name"], *bucket_range(bucket, dim)) for dim in dims]
    texts = [f"{name} {low}" if low == high else f"{name} {low}..{high}" for name, low, high in ranges]
    return ", ".join(texts) or "everything else"


def _kernel(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel of plan.json, checked: symbol, C parameter and result types, flags, operators as a comment."""
    symbol = kernel["symbol"]
    if kernel.get("check"):  # a function of the runtime
        require(symbol in _INDEX_CHECKS, "kernels", symbol, ", ".join(_INDEX_CHECKS))
    else:
        c_text.check_name(symbol, "plan.json: kernels")
    types = []
    for arg in kernel["args"]:
        base = c_text.c_type(arg["dtype"], f"plan.json: kernel '{symbol}'")
        good = not arg.get("scalar") or arg["dtype"] in ("int32", "int64")
        require(good, f"kernel '{symbol}': scalar", arg["dtype"], "int32, int64")
        types.append(base if arg.get("scalar") else f"{'const ' if arg['const'] else ''}{base} *")
    returns = kernel.get("check") or kernel.get("external", {}).get("opens") is not None
    return {
        "symbol": symbol,
        "types": types,
        "args": kernel["args"],
        "parallel": bool(kernel["parallel"]),
        "result": "int32_t" if returns else "void",
        "check": bool(kernel.get("check")),
        "backend": kernel.get("external", {}).get("backend", ""),
        "ops": " + ".join(op["name"] for op in kernel.get("ops", [])),
    }
