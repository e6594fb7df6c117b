"""The command: draws nodes, runs them, and prints the ones that disagree with ONNX Runtime."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path

from ..onnx_nodes.results import PASS, Result, reason_of
from ..onnx_nodes.worker import run_all
from .case import cases_of, compare_case, described, load_case
from .empty import empty_cases
from .narrow_floats import NARROW, narrow_cases
from .operators import MAKERS


def main() -> None:
    """Run the cases that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m conformance.drawn_operators")
    parser.add_argument("--only", default="", help="operators, separated by commas; default: all")
    parser.add_argument("--seeds", default="0:8", help="FIRST:LAST, without the last")
    parser.add_argument(
        "--floats", choices=("float32", *NARROW), default="float32", help="the type of float32 tensors"
    )
    parser.add_argument("--empty", action="store_true", help="with an axis of no elements")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="a file that gets a line for each result but a pass")
    args = parser.parse_args()
    first, last = (int(number) for number in args.seeds.split(":"))
    chosen = [name for name in args.only.split(",") if name] or list(MAKERS)
    began = time.monotonic()
    draw = empty_cases if args.empty else cases_of
    draw = draw if args.floats == "float32" else partial(narrow_cases, draw, args.floats)
    cases = [case for name in chosen for case in draw(name, MAKERS[name], range(first, last))]
    by_name = {case.name: case for case in cases}
    drawn = Counter(case.name.split("/")[0].split()[0] for case in cases)
    for name in chosen:
        if not drawn[name]:
            print(f"{name}: the reference takes none")
    print(f"{len(cases)} cases drawn in {time.monotonic() - began:.0f} s", flush=True)
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for result in run_all(cases, args.jobs, load_case, compare_case):
        outcomes[result.outcome] += 1
        if result.outcome == PASS:
            continue
        reasons[f"{result.outcome} {reason_of(result)}"] += 1
        _tell(result, described(by_name[result.name]), args.json)
    for reason, count in reasons.most_common():
        print(f"{count:4} {reason}")
    print(f"{dict(outcomes)} of {len(cases)} cases in {time.monotonic() - began:.0f} s")


def _tell(result: Result, text: str, path: Path | None) -> None:
    print(f"{result.outcome:8} {result.name}: {result.detail}\n         {text}", flush=True)
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([*dataclasses.astuple(result), text]) + "\n")


if __name__ == "__main__":
    main()
