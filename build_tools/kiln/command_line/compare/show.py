"""The result of a comparison as text: the verdict, and a table of tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kiln.command_line.compare.run import Compared, Row
from kiln.errors import printable
from kiln.tables import table_console

_MOST = 12  # rows of the table, unless all are asked for


def show(compared: Compared, path: Path, everything: bool, page: Path | None = None) -> int:
    """Print the result; returns the exit status: 0 if every tensor is within its limit, else 1.

    `path`: the file with all tensors; `page`: the report whose graph is coloured by error.
    """
    print(f"{compared.model} on {compared.target} ({compared.runner}), compared with {compared.reference}:")
    rows = _worst(compared.rows)
    chosen = rows if everything else _chosen(rows)
    width = None if sys.stdout.isatty() else 140
    table_console(width).print(_table(chosen))
    if len(chosen) < len(rows):
        print(f"{len(chosen)} of {len(rows)} tensors; --all shows the others, and {path} holds them")
    if page is not None:
        print(f"{page}: the graph, coloured by error")
    scaled = list(dict.fromkeys(row.probe.tensor for row in compared.rows if row.scaled))
    if scaled:
        print(f"channels with other scales, as equalisation gives them: {', '.join(scaled)}")
    culprit, failed = compared.culprit, [row for row in compared.outputs if not row.difference.passed]
    if culprit is not None:
        node, difference = culprit.probe, culprit.difference
        values = difference.detail or f"{difference.got:.6g} instead of {difference.want:.6g}"
        named = f"{node.node} ({node.op}), tensor {node.tensor}"
        print(f"first beyond its limit: {printable(named)}")
        print(f"in vector {culprit.vector}: {values}")
        return 1
    if failed:
        names = ", ".join(dict.fromkeys(row.probe.tensor for row in failed))
        print(f"outputs beyond their limits: {printable(names)}; not where all tensors are outputs,")
        print("so the fault is in kernels that compute several nodes at once")
        return 1
    print(f"all {len(rows)} tensors are within their limits")
    return 0


def _worst(rows: Sequence[Row]) -> list[Row]:
    """One row for each tensor: its golden vector with the greatest error in terms of the limit."""
    worst: dict[str, Row] = {}
    for row in rows:
        worst_so_far = worst.get(row.probe.tensor)
        if worst_so_far is None or _severity(row) > _severity(worst_so_far):
            worst[row.probe.tensor] = row
    return list(worst.values())


def _severity(row: Row) -> tuple[bool, float]:
    difference = row.difference
    return (
        not difference.passed,
        difference.error / difference.limit if difference.limit else difference.error,
    )


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """The rows around the first one beyond its limit; if no row is, the rows nearest to their limits."""
    first = next((number for number, row in enumerate(rows) if not row.difference.passed), None)
    if first is not None:
        start = max(first - 3, 0)
        return list(rows[start : start + _MOST])
    nearest = {id(row) for row in sorted(rows, key=_severity, reverse=True)[:_MOST]}
    return [row for row in rows if id(row) in nearest]


def _table(rows: Sequence[Row]) -> Table:
    table = Table()
    for name in ("node", "operator", "tensor"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=36)
    for name in ("error", "limit", "SNR, dB", "greatest at", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        difference = row.difference
        table.add_row(
            printable(row.probe.node), row.probe.op, printable(row.probe.tensor),
            f"{difference.error:.3g}", f"{difference.limit:.3g}",
            "equal" if difference.snr is None else f"{difference.snr:.1f}",
            "" if difference.snr is None else str(list(difference.where)),
            _verdict(row),
        )  # fmt: skip
    return table


def _verdict(row: Row) -> str:
    if not row.difference.passed:
        return "WRONG"
    return "ok, scaled" if row.scaled else "ok, weak" if row.difference.weak else "ok"
