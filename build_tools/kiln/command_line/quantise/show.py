"""The figures of a quantised model as text."""

from __future__ import annotations

import sys

from rich.table import Table

from kiln.command_line.quantise.run import Quantised
from kiln.command_line.quantise.search import Figures
from kiln.command_line.timed_copies import RunTimes
from kiln.errors import printable
from kiln.tables import table_console

_MOST = 10  # rows of a table


def show(result: Quantised) -> None:
    """Print the quality and the bytes of both models, the search, and the most sensitive nodes."""
    console = table_console(None if sys.stdout.isatty() else 120)
    if result.warning:
        print(f"warning: {result.warning}")
    time = [] if result.time is None else [f"time, {result.time.unit}"]
    table = _table("model", "SNR, dB", "accuracy", "bytes", "nodes in float", *time)
    of_float = [*_quality(result.float_figures), f"{result.float_bytes:,}", "all"]
    table.add_row("float", *of_float, *_time(result.float_time))
    kept_count = f"{len(result.kept)} of {result.choices}"
    of_quantised = [*_quality(result.figures), f"{result.bytes:,}", kept_count]
    table.add_row("quantised", *of_quantised, *_time(result.time))
    console.print(table)
    if len(result.steps) > 1:
        on = "on samples not calibrated with" if result.split else "on the samples"
        table = _table(on, "SNR, dB", "accuracy", "")
        for step in result.steps:
            table.add_row(step.name, *_quality(step.figures), "" if step.used else "not used")
        console.print(table)
    if result.frontier:
        table = _table("nodes in float", "SNR, dB", "accuracy", "bytes", *time)
        for candidate in result.frontier:
            quality = _quality(candidate.figures)
            table.add_row(str(len(candidate.kept)), *quality, f"{candidate.bytes:,}", *_time(candidate.time))
        console.print(table)
    if result.layers:
        table = _table("only this node quantised", "SNR, dB", "")
        for node, snr in result.layers[:_MOST]:
            table.add_row(printable(node), f"{snr:.1f}", "stays float" if node in result.kept else "")
        console.print(table)
    print(f"{result.model}: QDQ, see also {result.model.with_suffix('.json')}")
    if result.described is not None:
        print(f"{result.described}: the keys of the float model, to build it with")


def _time(time: RunTimes | None) -> list[str]:
    """The cell of the time, where there is one: of the slowest bucket."""
    return [] if time is None else [f"{time.longest:.4g}"]


def _quality(figures: Figures) -> tuple[str, str]:
    accuracy = "" if figures.accuracy is None else f"{100 * figures.accuracy:.2f} %"
    return ("" if figures.snr == float("inf") else f"{figures.snr:.1f}"), accuracy


def _table(first: str, *others: str) -> Table:
    table = Table()
    table.add_column(first, overflow="ellipsis", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
