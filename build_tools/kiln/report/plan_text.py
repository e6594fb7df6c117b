"""plan-text: stage that prints the steps of each bucket in order, and the bytes that they read and write."""

from __future__ import annotations

import sys

from rich.table import Table

from kiln.config import sizes
from kiln.lower.schema import KernelRecord
from kiln.plan.schema import ExpressionArgument, PlannedStep, read_plan
from kiln.report.float_steps import lines
from kiln.stages.use import PlanTextStage
from kiln.tables import table_console


def run(args: PlanTextStage) -> None:
    """Print a table for each bucket."""
    plan = read_plan(args.plan)
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    console = table_console(None if sys.stdout.isatty() else 120)
    print(f"{plan.name} on {plan.target}: {plan.params.bytes} bytes of parameters, {plan.params.storage}")
    for bucket in plan.buckets:
        print(
            f"{bucket.name}: arena {bucket.all_arena_bytes} bytes, "
            f"at least {bucket.lower_bound_bytes} are needed"
        )
        table = Table()
        for title in ("#", "step", "reads", "writes", "bytes written", "multiply-adds"):
            right = title not in ("step", "reads", "writes")
            table.add_column(title, justify="right" if right else "left", overflow="fold")
        for index, step in enumerate(bucket.steps):
            kernel = kernels[step.kernel]
            written = _bytes(step, kernel)
            macs = kernel.flops // 2 if step.macs is None else step.macs
            reads, writes = _shapes(step, kernel, True), _shapes(step, kernel, False)
            table.add_row(str(index), step.label, reads, writes, str(written), str(macs or ""))
        console.print(table)
        for line in lines(bucket, kernels):
            print(line)


def _shapes(step: PlannedStep, kernel: KernelRecord, const: bool) -> str:
    """Types and shapes of the tensors, other than parameters, that a step reads or writes."""
    texts = []
    for passed, declared in zip(step.args, kernel.args, strict=True):
        if declared.const is not const or isinstance(passed, ExpressionArgument) or passed.at == "params":
            continue
        shape = "?" if passed.shape is None else "x".join(map(sizes.show, passed.shape)) or "scalar"
        texts.append(f"{declared.dtype} {shape}")
    return ", ".join(texts)


def _bytes(step: PlannedStep, kernel: KernelRecord) -> int:
    return sum(
        passed.bytes
        for passed, declared in zip(step.args, kernel.args, strict=True)
        if not declared.const and not isinstance(passed, ExpressionArgument)
    )
