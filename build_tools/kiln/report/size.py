"""Print the flash and RAM of a model, and check them against the budgets of the target and the model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiln.config import Target, read_target, sizes
from kiln.config.library_choices import LibraryChoices
from kiln.config.records import read
from kiln.emit.size_schema import (
    BucketFigures,
    BudgetUse,
    CodeOfVariant,
    GpuUsage,
    LinkedKernel,
    SizeFile,
    read_size,
)
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.plan.parameter_records import SeveralForms
from kiln.plan.schema import Plan, read_plan
from kiln.report import budget
from kiln.report.buckets import has_buckets
from kiln.report.measure import linked_figures, on_gpu, plan_figures
from kiln.report.run_budget import run_budgets
from kiln.stages.target import SizeStage
from kiln.tables import table_console

_TOP = 8  # most kernels and contributors that are listed


def run(args: SizeStage) -> None:
    """Print the tables and write size.json. Raises KilnError when a budget is exceeded."""
    if args.show:
        print_figures(read_size(args.show))
        if args.byoc:
            print(read(LibraryChoices, args.byoc).summary)
        return
    if args.plan is None or args.target is None or args.out is None:
        raise KilnError("size: --plan, --target and --out are needed without --print")
    plan, target = read_plan(args.plan), read_target(args.target)
    figures = plan_figures(plan, target.name)
    if args.bundle:
        if args.work is None:
            raise KilnError("size: --bundle needs --work")
        linked = linked_figures(plan, args.bundle, target, args.work)
        if args.usage:
            linked = on_gpu(plan, linked, read(GpuUsage, args.usage))
        figures = figures.model_copy(update={"linked": linked})
    config = read_json(args.config) if args.config else {}
    budgets = {
        f"model {plan.name}": config.get("budget", config) or {},
        f"target {target.name}": target.budget.model_dump(),
    }
    runs = run_budgets(budgets, target)
    budgets |= budget.of_memory(target)
    lines = [*budget.check(figures, budgets), *budget.of_regions(figures, plan, target)]
    uses = [BudgetUse(owner=line.owner, kind=line.kind, limit=line.limit, used=line.used) for line in lines]
    figures = figures.model_copy(update={"run_budgets": runs, "budgets": uses})
    exceeded = [line for line in lines if line.excess > 0]
    if exceeded:
        args.out.unlink(missing_ok=True)
        print_excess(exceeded, figures, plan)
        nearest = ""
        if any(line.kind == "ram" for line in exceeded):
            nearest = nearest_plan(figures, by_choice=config.get("patches") != "none")
        raise KilnError(_complaint(exceeded, plan.name, target.name) + nearest)
    warning = software_floats(figures, target)
    if warning:
        print(f"kiln: warning: {warning}")
    if not args.quiet:
        print_figures(figures)
    write_json(args.out, figures.model_dump())


def software_floats(figures: SizeFile, target: Target) -> str:
    """A sentence about the cost of floats on a core without instructions for them; empty if there is none.

    A core with instructions for float32 has functions for float64 only; conversions of 64-bit integers do
    not count, see `code_by_part`.
    """
    size = figures.linked.code.floats if figures.linked is not None else 0
    if not size:
        return ""
    from kiln.lower.target_check import has_floats  # imports TVM

    dtype, other = "floats", "a model quantised to int8, inputs and outputs included, needs none"
    if has_floats(target):
        dtype, other = "float64", "float32 is computed by instructions"
    return (
        f"{figures.model} computes on {dtype}, for which the core of target {figures.target} has no "
        f"instructions: functions of the compiler's library compute such numbers, {size:,} bytes of flash, "
        f"and each operation takes typically 30 to 100 instructions; {other}"
    )


def nearest_plan(figures: SizeFile, *, by_choice: bool) -> str:
    """The end of an error about RAM: how the plan with the least need was made. `by_choice`: patches allowed.

    The plan with the lowest arena that was found is built where none keeps the limit.
    """
    if not by_choice:
        return "; the plan has no patches, because the model says 'patches: none'"
    bucket = max(figures.buckets, key=lambda bucket: bucket.arena_bytes)
    patches = bucket.patches
    if patches is None:
        return "; this is the nearest plan that was found"
    return (
        f"; this is the nearest plan that was found, with the first {patches.layers} layers in "
        f"{patches.parts} patches: without them {patches.bytes_before} bytes are in use at once"
    )


def _complaint(exceeded: Sequence[budget.Line], model: str, target: str) -> str:
    complaints = [
        f"{line.owner} allows {line.limit} bytes of {line.kind}, "
        f"{'' if line.exact else 'at least '}{line.used} needed, {line.excess} too many"
        for line in exceeded
    ]
    return f"budget exceeded for {model} on {target}: {'; '.join(complaints)}"


def _console() -> Console:
    return table_console()


_DESCRIPTIONS = ("operators", "parameter", "part", "sizes")  # columns


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        is_text = name in (*_DESCRIPTIONS, "variant", "kernel", "bucket", "budget", "strategy")
        # On a narrow terminal only descriptions are wrapped or shortened, never a symbol or a number.
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name not in _DESCRIPTIONS)
    return table


def print_figures(figures: SizeFile) -> None:
    """Print size.json: linked bytes by section, the arena of every bucket, the largest kernels, budgets."""
    console, linked = _console(), figures.linked
    params, used = figures.params, budget.used_bytes(figures)
    and_state = ", state and" if figures.state_bytes else ""
    table = _table(f"{figures.model} on {figures.target}", "part", "bytes")
    if linked is None:
        table.add_row(f"parameters ({params.storage})", str(params.bytes))
        table.add_row("arena, largest bucket" + (", and state" if and_state else ""), str(used["ram"]))
    else:
        for name, label in _ROWS.items():
            table.add_row(label, str(getattr(linked.sections, name)))
        if params.storage == "file":
            table.add_row("params.bin", str(params.bytes))
        table.add_section()
        table.add_row("flash: all but .bss, linked, less an empty program", str(used["flash"]))
        table.add_row(f"  of which parameters ({params.storage})", str(params.bytes))
        for name, label in CODE.items():
            if count := getattr(linked.code, name):
                table.add_row(f"  of which code: {label}", str(count))
        table.add_section()
        table.add_row(f"RAM: .data, .bss{and_state or ' and'} the largest arena", str(used["ram"]))
        if figures.state_bytes:
            table.add_row("  of which state, one for each session", str(figures.state_bytes))
        if "stack" in used:
            table.add_row("stack: greatest depth below a call of the model", str(used["stack"]))
    console.print(table)
    _print_several(console, figures.several)
    _print_buckets(console, figures)
    _print_variants(console, [] if linked is None else linked.variants)
    if linked is not None:
        top = _table("largest kernels, bytes of code", "kernel", "operators", "bytes")
        for kernel in linked.kernels[:_TOP]:
            operators = Text(kernel.label, no_wrap=True, overflow="ellipsis")
            top.add_row(kernel.symbol, operators, str(kernel.bytes))
        smaller = linked.kernels[_TOP:]
        if smaller:
            top.add_row(f"{len(smaller)} others", "", str(sum(kernel.bytes for kernel in smaller)))
        console.print(top)
        _print_gpu(console, linked.kernels[:_TOP])
    if figures.budgets:
        budget_table = _table("budgets", "budget", "limit", "used", "left")
        for row in figures.budgets:
            budget_table.add_row(
                f"{row.owner}, {row.kind}", str(row.limit), str(row.used), str(row.limit - row.used)
            )
        console.print(budget_table)


def _print_several(console: Console, weights: Sequence[SeveralForms]) -> None:
    """Print the parameters that buckets and special cases read in several packings."""
    table = _table(
        "parameters in several packings, bytes", "parameter", "packings", "in the model", "stored", "times"
    )
    for row in weights[:_TOP]:
        times = f"{row.bytes_after / row.bytes_before:.2f}"
        table.add_row(row.name, *map(str, (row.forms, row.bytes_before, row.bytes_after)), times)
    if table.row_count:
        console.print(table)


def _print_gpu(console: Console, kernels: Sequence[LinkedKernel]) -> None:
    """Print the resources of the largest kernels on each GPU architecture; nothing for kernels on the CPU."""
    table = _table("on the GPU", "kernel", "GPU", "code", "registers", "stack", "shared")
    for kernel in kernels:
        for arch, resources in kernel.gpu.items():
            figures = (resources.bytes, resources.registers, resources.stack_bytes, resources.shared_bytes)
            table.add_row(kernel.symbol, arch, *map(str, figures))
    if table.row_count:
        console.print(table)


CODE = {
    "kernels": "kernels",
    "plan": "plan",
    "runtime": "runtime, core",
    "threads": "runtime, threads",
    "platform": "runtime, operating system",
    "floats": "floats in software, which the core has no instructions for",
    "other": "C library and others",
}
_ROWS = {
    "text": ".text: code",
    "rodata": ".rodata: constants",
    "data": ".data: variables with a value",
    "bss": ".bss: variables that begin as 0",
}


def _print_buckets(console: Console, figures: SizeFile) -> None:
    arenas = _table("arena", "bucket", "arena", "lower bound", "ratio", "steps")
    for bucket in figures.buckets:
        bound = bucket.lower_bound_bytes
        ratio = f"{bucket.arena_bytes / bound:.3f}" if bound else "1.000"
        arenas.add_row(bucket.name, str(bucket.arena_bytes), str(bound), ratio, str(bucket.steps))
    console.print(arenas)
    _print_patches(console, figures.buckets)
    if has_buckets(figures.buckets):
        _print_shared(console, figures)


def _print_patches(console: Console, buckets: Sequence[BucketFigures]) -> None:
    """Print the bytes that patches save in each bucket, and their additional multiply-adds, if any."""
    table = _table(
        "first layers in patches",
        "bucket",
        "layers",
        "parts",
        "arena",
        "without, estimated",
        "more operations",
    )
    for bucket in buckets:
        patches = bucket.patches
        if patches is not None:
            more = f"{100 * patches.more_macs / max(1, patches.macs - patches.more_macs):.1f} %"
            numbers = (patches.layers, patches.parts, bucket.arena_bytes, patches.bytes_before)
            table.add_row(bucket.name, *map(str, numbers), more)
    if table.row_count:
        console.print(table)


def _print_variants(console: Console, variants: Sequence[CodeOfVariant]) -> None:
    """Print the bytes of the kernels that each variant calls; nothing for a single variant."""
    table = _table("kernels of each variant, bytes", "variant", "kernels", "in no other")
    for row in variants:
        table.add_row(row.name, str(row.code_bytes), str(row.own_code_bytes))
    if table.row_count > 1:
        console.print(table)


def _print_shared(console: Console, figures: SizeFile) -> None:
    """Print the bytes of parameters and kernels that each bucket uses, and the totals without duplicates."""
    linked = figures.linked
    code = {row.name: row for row in (linked.buckets if linked else [])}
    table = _table(
        "used by each bucket, bytes", "bucket", "sizes", "strategy", "parameters", "kernels", "in no other"
    )
    for row in figures.buckets:
        strategy = f"case of {row.case_of}" if row.case_of else row.strategy
        bucket_code = code.get(row.name)
        bytes_of = [str(bucket_code.code_bytes), str(bucket_code.own_code_bytes)] if bucket_code else ["", ""]
        table.add_row(
            row.name, sizes.ranges_text(row.model_dump()["dims"]), strategy, str(row.params_bytes), *bytes_of
        )
    table.add_section()
    kernels = str(linked.code.kernels) if linked else ""
    table.add_row("all, each once", "", "", str(figures.params.bytes), kernels, "")
    console.print(table)


def print_excess(exceeded: Sequence[budget.Line], figures: SizeFile, plan: Plan) -> None:
    """Print each exceeded budget, and the largest contributors to flash or RAM."""
    console = _console()
    table = _table("budgets exceeded", "budget", "limit", "used", "too many")
    for line in exceeded:
        table.add_row(f"{line.owner}, {line.kind}", str(line.limit), str(line.used), str(line.excess))
    console.print(table)
    for kind in sorted({line.kind for line in exceeded}):
        rows = budget.contributors(kind, figures, plan)[:_TOP]
        largest = _table(f"most of the {kind} goes to", "part", "bytes")
        for label, count in rows:
            largest.add_row(label, str(count))
        console.print(largest)
