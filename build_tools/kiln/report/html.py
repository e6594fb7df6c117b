"""Write report.html: the model, its sizes, arena, graph, steps and checks, on one page that loads nothing."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kiln import __version__, templates
from kiln.config import sizes
from kiln.config.library_choices import LibraryChoices
from kiln.config.measured_errors import PrecisionFile
from kiln.config.records import read
from kiln.emit.size_schema import BucketFigures, GpuResources, SizeFile, read_size
from kiln.errors import printable
from kiln.files import atomic_write, read_json
from kiln.golden.schema import GoldenFile, read_golden
from kiln.lower.schema import KernelArgument
from kiln.plan.schema import ExpressionArgument, MemoryArgument, Plan, PlannedBucket, StepArgument, read_plan
from kiln.report import arena, budget
from kiln.report.buckets import has_buckets, plan_rows
from kiln.report.graph import graph
from kiln.report.measure import operators, peak_step
from kiln.report.measured import Measured, asset, tested_variants, worst_rows
from kiln.report.origins import SourceNode, origins, short, source_nodes
from kiln.report.size import CODE
from kiln.stages.target import ReportStage

_TEMPLATES = Path(__file__).resolve().parent / "templates"
# Attributes that are not shown when they have this, the usual value.
_PLAIN = {"groups": 1, "dilation": [1, 1], "out_dtype": None, "ceil_mode": False}


def run(args: ReportStage) -> None:
    """Write the page. Equal inputs give equal bytes."""
    folder = args.golden or args.bundle / "golden"
    content = PageContent(
        plan=read_plan(args.plan),
        target=read_json(args.target),
        size=read_size(args.size),
        manifest=_read(args.bundle / "manifest.json"),
        golden=read_golden(folder) if (folder / "golden.json").is_file() else None,
        tolerance=_read(args.tolerance or folder / "tolerance.json"),
        test=read_json(args.test) if args.test else {},
        padding=_read(folder / "padding.json"),
        precision=read(PrecisionFile, args.precision) if args.precision else None,
        byoc=read(LibraryChoices, args.byoc) if args.byoc else None,
        profile=read_json(args.profile) if args.profile else {},
        compared=read_json(args.compare) if args.compare else {},
        nodes=source_nodes(args.source) if args.source else [],
    )
    atomic_write(args.out, render(content))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(path) if path.is_file() else {}
    return content


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """The files that the page shows, read.

    Where one that has a default is empty, its section or column is omitted. `nodes`: the nodes of the model's
    file.
    """

    plan: Plan
    target: Mapping[str, Any]
    size: SizeFile
    manifest: Mapping[str, Any] = field(default_factory=dict)
    golden: GoldenFile | None = None
    tolerance: Mapping[str, Any] = field(default_factory=dict)
    test: Mapping[str, Any] = field(default_factory=dict)
    padding: Mapping[str, Any] = field(default_factory=dict)
    precision: PrecisionFile | None = None
    byoc: LibraryChoices | None = None
    profile: Mapping[str, Any] = field(default_factory=dict)
    compared: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[SourceNode] = ()


def render(content: PageContent) -> str:
    """The text of the page."""
    plan, target, size, manifest = content.plan, content.target, content.size, content.manifest
    test, tolerance = content.test, content.tolerance
    precision, profile = content.precision, content.profile
    measurements = Measured(profile, worst_rows(content.compared), content.nodes)
    used = budget.used_bytes(size)
    rows = plan_rows(plan)
    buckets = [_bucket(plan, size, *p, measurements) for p in zip(plan.buckets, rows, strict=True)]
    time_unit = profile.get("time_unit", "ms")
    template = environment().get_template("report.html.j2")
    return template.render(
        plan=plan,
        target=target,
        size=size,
        used=used,
        manifest=manifest,
        golden=content.golden,
        tolerance=tolerance.get("tolerance", tolerance),
        errors=_errors(test),
        test=test,
        precision=precision,
        byoc=content.byoc,
        measured=_errors(precision.model_dump() if precision else {}),
        tools=manifest.get("tools") or _tools(),
        buckets=buckets,
        profiled=bool(profile),
        untuned=plan.untuned or [],
        compared=bool(content.compared),
        time_unit=time_unit,
        named=any(bucket["named"] for bucket in buckets),
        variants=tested_variants(size, test),
        ran={**test, **profile} if "variant" in {**test, **profile} else None,
        data=_script_data(plan, target, used, time_unit, buckets),
        dagre=Markup(asset("dagre.min.js").partition("\n//# sourceMappingURL=")[0]),
        dagre_licence=Markup(asset("dagre.LICENSE").replace("--", "- -")),
        has_buckets=has_buckets(rows),
        padding={row["name"]: row["mean_padding"] for row in content.padding.get("buckets", [])},
        flash=_flash(size),
        flops=max(sum(step["flops"] for step in _steps(plan, size, b)) for b in plan.buckets),
        parameters=sorted(plan.params.tensors, key=lambda t: (-t.bytes, t.name)),
    )


def _script_data(
    plan: Plan,
    target: Mapping[str, Any],
    used: Mapping[str, Any],
    time_unit: str,
    buckets: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The data that the page's script reads, as JSON."""
    return {
        "format": 1,
        "model": plan.name,
        "target": target["name"],
        "bytes": {**used, "parameters": plan.params.bytes},
        "time_unit": time_unit,
        "buckets": [bucket["graph"] for bucket in buckets],
    }


def _shown(value: Any) -> Any:
    """A string without control characters and marks of writing direction; other values unchanged.

    jinja2 escapes the characters that are special in HTML.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


@functools.cache
def environment() -> jinja2.Environment:
    """The jinja2 environment of the report's templates, with their filters; it compiles each once."""
    jinja = templates.environment(_TEMPLATES, autoescape=True, finalize=_shown)
    jinja.filters["bytes"] = arena.bytes_text
    jinja.filters["count"] = _count
    jinja.filters["many"] = rounded_number
    jinja.filters["shape"] = lambda shape: " × ".join(map(sizes.show, shape)) or "scalar"
    jinja.filters["time"] = lambda milliseconds: f"{milliseconds:.4g}"
    jinja.filters["passed"] = lambda comparison: (
        comparison["error"] is not None and comparison["error"] <= comparison["limit"]
    )
    jinja.filters["percent"] = lambda share: "" if share is None else f"{100 * share:.1f} %"
    return jinja


_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang", "onnx", "onnxruntime", "ai-edge-litert", "numpy")


def _tools() -> dict[str, str]:
    """Versions of Kiln and of the installed packages that a build uses."""
    versions = {"kiln": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _count(value: int) -> str:
    """An integer with digits in groups, 1234567 as 1 234 567, with narrow no-break spaces."""
    return f"{value:,}".replace(",", "\u202f")


def rounded_number(value: int) -> str:
    """An integer in words, 1234567 as `1.23 million`."""
    for size, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return str(value)


def _bucket(
    plan: Plan, size: SizeFile, bucket: PlannedBucket, row: BucketFigures, measured: Measured
) -> dict[str, Any]:
    """A bucket of plan.json with its row of the size table, its steps, its graph and its drawn arena."""
    steps = _steps(plan, size, bucket)
    most_operations = max((step["flops"] for step in steps), default=0) or 1
    origin_of, times = origins(plan, bucket.steps, measured.nodes), measured.times(bucket)
    drawn = graph(plan, bucket, steps, origin_of, times, measured.errors)
    of_step = {node["step"]: node for node in drawn["nodes"] if "step" in node}
    code = [
        bucket_code
        for bucket_code in (size.linked.buckets if size.linked else [])
        if bucket_code.name == bucket.name
    ]
    for step in steps:
        step["share"] = f"{100 * step['flops'] / most_operations:.1f}"
        step["origin"] = origin_of.get(step["index"])
        step["time"], step["error"] = of_step[step["index"]]["time"], of_step[step["index"]]["error"]
    return {
        "named": bool(origin_of),
        "graph": drawn,
        **row.model_dump(),
        **(code[0].model_dump() if code else {}),
        "tensors": bucket.tensors,
        "sizes": sizes.ranges_text(row.model_dump()["dims"]),
        "steps": steps,
        "drawing": Markup(arena.draw(bucket, [step["label"] for step in steps])),
        "peak": peak_step(bucket)[0],
    }


def _steps(plan: Plan, size: SizeFile, bucket: PlannedBucket) -> list[dict[str, Any]]:
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    linked = {kernel.symbol: kernel for kernel in (size.linked.kernels if size.linked else [])}
    rows = []
    for index, step in enumerate(bucket.steps):
        kernel = kernels[step.kernel]
        ops = [{"name": short(op.name), "attrs": attributes(op.attrs)} for op in kernel.ops]
        pairs = zip(step.args, kernel.args, strict=True)
        locations = [place_of(argument, declared) for argument, declared in pairs]
        rows.append(
            {
                "index": index,
                "label": step.label or operators(kernel),
                "ops": ops,
                "detail": next((op["attrs"] for op in ops if op["attrs"]), ""),
                "arithmetic": _ARITHMETIC.get(step.arithmetic or ""),
                "symbol": step.kernel,
                "extent": sizes.show(step.extent),
                "parallel": kernel.parallel,
                # The work of a kernel that buckets share depends on the bucket: the step has its `macs`.
                "flops": kernel.flops if step.macs is None else 2 * step.macs,
                "code": kernel_code.bytes if (kernel_code := linked.get(step.kernel)) else None,
                "gpu": [
                    _on_gpu(arch, resources)
                    for arch, resources in (kernel_code.gpu if kernel_code else {}).items()
                ],
                "params": sum(location["bytes"] or 0 for location in locations if location["at"] == "params"),
                "places": locations,
            }
        )
    return rows


def _on_gpu(arch: str, resources: GpuResources) -> str:
    """Resources of a kernel on a GPU as text: `sm_90: 72 registers, 26112 B shared`."""
    words = [f"{resources.registers} registers"]
    words += [f"{resources.stack_bytes} B stack"] if resources.stack_bytes else []
    words += [f"{resources.shared_bytes} B shared"] if resources.shared_bytes else []
    return f"{arch}: {', '.join(words)}"


# Marks of the steps of a quantised model.
_ARITHMETIC = {"integer": "integers", "float": "floats", "between": "floats between integers"}


def attributes(attrs: Mapping[str, Any]) -> str:
    """An operator's attributes as text, without attributes at their default."""
    shown = {k: v for k, v in sorted(attrs.items()) if k not in _PLAIN or v != _PLAIN[k]}
    return ", ".join(f"{key}={_plain(value)}" for key, value in shown.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_plain(v) for v in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def place_of(arg: StepArgument, declared: KernelArgument) -> dict[str, Any]:
    """Location, bytes, type and shape of a kernel's argument; `where` is text: `arena+4096`, `input 0`."""
    if isinstance(arg, ExpressionArgument):
        where = sizes.show(arg.expr)
        return {"at": arg.at, "where": where, "bytes": None, "written": False, "dtype": "", "shape": ""}
    where = f"{arg.at}+{arg.offset}" if isinstance(arg, MemoryArgument) else f"{arg.at} {arg.index}"
    shape = "" if arg.shape is None else " × ".join(map(sizes.show, arg.shape)) or "scalar"
    return {"at": arg.at, "where": where, "bytes": arg.bytes or None, "written": not declared.const,
            "dtype": declared.dtype, "shape": shape}  # fmt: skip


def _flash(size: SizeFile) -> list[dict[str, Any]]:
    """The parts of flash for a bar chart: name, bytes and per cent. Before linking, parameters only."""
    linked, params = size.linked, size.params.bytes
    sections = [("parameters", params)]
    if linked is not None:
        sections += [(label, count) for key, label in CODE.items() if (count := getattr(linked.code, key))]
        other_bytes = budget.used_bytes(size)["flash"] - sum(count for _, count in sections)
        sections.append(("tables, other constants, alignment", max(other_bytes, 0)))
    bytes_in_all = sum(count for _, count in sections) or 1
    return [
        {"name": n, "bytes": count, "percent": f"{100 * count / bytes_in_all:.2f}"} for n, count in sections
    ]


def _errors(test: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Results of test.json or precision.json, by vector name and output name."""
    return {
        vector["name"]: {output["name"]: output for output in vector["outputs"]}
        for vector in test.get("vectors", [])
    }
