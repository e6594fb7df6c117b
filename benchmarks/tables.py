"""Tables of times, errors and footprints as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.compare import Match, mean_lead
from benchmarks.contenders import Contender
from benchmarks.footprint import Footprint
from benchmarks.timing import Times

TIMES_HEADER = ["model", "threads", "contender", "version", "clock", "median_ms", "spread", "best_ms"]
TIMES_HEADER += ["runs", "rounds", "busy", "largest_error"]
FOOTPRINTS_HEADER = ["model", "contender", "cold_start_s", "cold_best_s", "peak_rss_bytes"]
FOOTPRINTS_HEADER += ["code_bytes", "weight_bytes"]
BESIDE = "onnxruntime"  # whose footprint Kiln's is set against
BUSY = 0.97  # a single thread that got less of its core than this was interrupted


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def milliseconds(seconds: float) -> str:
    """Three significant digits, and never fewer than the integer part has."""
    return _short(seconds * 1e3)


def cell(times: Times | None, fastest: bool, single: bool, held: bool = True) -> str:
    """Median in ms and ± half the range of the rounds; bold: the fastest; *: was interrupted; †: not held."""
    if times is None:
        return "–"
    text = milliseconds(times.median)
    mark = "\\*" if single and times.cpu < BUSY * times.wall else ""
    return f"{f'**{text}**' if fastest else text} ±{times.spread:.0%}{mark}{'' if held else ' †'}"


def times_table(matches: Sequence[Match], contenders: Sequence[Contender]) -> str:
    """A row a model: every contender's time, and how many times the best Kiln is as fast as the best peer."""
    names = [c.name for c in contenders]
    kilns = [c.name for c in contenders if c.target is not None]
    rows = []
    for match in matches:
        fastest = match.fastest([n for n in names if n not in match.unheld])
        cells = [
            "cannot"
            if n in match.left_out
            else cell(match.times.get(n), n == fastest, match.threads == 1, n not in match.unheld)
            for n in names
        ]
        leads = [match.lead([name]) for name in kilns]
        rows.append([match.model, *cells, *(f"{lead[1]:.2f}" if lead else "–" for lead in leads)])
    means = [f"{mean_lead(matches, [name]):.2f}".replace("nan", "–") for name in kilns]
    rows.append(["geometric mean", *[""] * len(names), *means])
    return markdown(["ms", *names, *(f"best peer / {name}" for name in kilns)], rows)


def left_out(matches: Sequence[Match]) -> str:
    """A line for each contender that cannot run a model, with the reason."""
    reasons = {(m.model, name): why for m in matches for name, why in m.left_out.items()}
    lines = [f"- {model} on {name}: {why}\n" for (model, name), why in reasons.items()]
    return "".join(["What cannot be measured, and why:\n\n", *lines, "\n"]) if lines else ""


def errors_table(matches: Sequence[Match], contenders: Sequence[Contender]) -> str:
    """Markdown: by model and contender, the largest error over the largest value of the reference."""
    names = [c.name for c in contenders]
    rows = [
        [match.model, *(f"{match.errors[n]:.1e}" if n in match.errors else "–" for n in names)]
        for match in matches
        if match.threads == min(m.threads for m in matches)
    ]
    return markdown(["largest error", *names], rows)


def footprints_table(footprints: Sequence[Footprint]) -> str:
    """A table for each of start, memory, and deployed bytes; a row a model, a column a way to run it.

    The last column sets Kiln as a C program against ONNX Runtime.
    """
    names = list(dict.fromkeys(f.name for f in footprints))
    models = list(dict.fromkeys(f.model for f in footprints))
    cells = {(f.model, f.name): f for f in footprints}
    kiln_in_c = next((name for name in names if name.endswith(", in C")), None)
    figures: dict[str, Callable[[Footprint], float | None]] = {
        "cold start, ms": lambda f: f.cold_start * 1e3,
        "peak memory, MB": lambda f: f.peak_rss / 1e6,
        "code and runtime, MB": lambda f: f.sizes.code / 1e6 if f.sizes else None,
        "with weights, MB": lambda f: (f.sizes.code + f.sizes.weights) / 1e6 if f.sizes else None,
    }
    tables = []
    for title, figure in figures.items():
        rows = []
        for model in models:
            values = {name: figure(cells[model, name]) for name in names if (model, name) in cells}
            least, most = values.get(kiln_in_c or ""), values.get(BESIDE)
            ratio = f"{most / least:.1f}" if least and most else "–"
            rows.append([model, *(_short(values.get(name)) for name in names), ratio])
        tables.append(markdown([title, *names, f"{BESIDE} / {kiln_in_c or 'kiln'}"], rows))
    return "\n".join(tables)


def times_csv(matches: Sequence[Match], versions: Mapping[str, str]) -> str:
    """All times as CSV: a line for each contender, model and number of threads."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(TIMES_HEADER)
    for match in matches:
        for name, times in match.times.items():
            figures = [times.median * 1e3, times.spread, times.best * 1e3]
            write(
                [match.model, match.threads, name, versions[name], match.clock]
                + [f"{figure:.6g}" for figure in figures]
                + [times.runs, len(times.rounds), f"{times.cpu / times.wall:.3f}"]
                + [f"{match.errors[name]:.3g}"]
            )
    return out.getvalue()


def footprints_csv(footprints: Sequence[Footprint]) -> str:
    """The footprints, in seconds and bytes."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(FOOTPRINTS_HEADER)
    for f in footprints:
        cold = [f"{f.cold_start:.6f}", f"{min(f.cold):.6f}"]
        sizes = [f.sizes.code, f.sizes.weights] if f.sizes else ["", ""]
        write([f.model, f.name, *cold, f"{f.peak_rss:.0f}", *sizes])
    return out.getvalue()


def _short(value: float | None) -> str:
    """Three significant digits, and never fewer than the integer part has."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
