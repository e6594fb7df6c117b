"""A profile in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", Google, 2016: complete events (ph X) with a start and a duration in
microseconds; of an emulated machine whose instructions are counted, in thousands of instructions. A bucket of
the model is a process; its steps on one thread and on all threads are two rows, each from time 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kiln.report.origins import short


def trace(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the trace file. `profile` is the result of `kiln.device.check.bench.profile`."""
    names = list(dict.fromkeys(step["bucket"] for step in profile["steps"]))
    events = [event for number, name in enumerate(names, start=1) for event in _bucket(profile, name, number)]
    keys = ("model", "target", "runner", "emulated", "time_unit", "rate_unit", "peak_gflops", "threads")
    about = {key: profile[key] for key in keys if key in profile}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**about, "device": profile["device"]},
    }


def _bucket(profile: Mapping[str, Any], name: str, process: int) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", process, 0, f"{profile['model']} {name}")
    rows = {1: ("time", "1 thread")}
    if profile["threads"] > 1:
        rows[2] = ("time_threads", f"{profile['threads']} threads")
    for row, (key, title) in rows.items():
        yield _metadata("thread_name", process, row, title)
        start = 0.0
        for step in profile["steps"]:
            if step["bucket"] != name or step[key] is None:
                continue
            yield {
                "name": " + ".join(short(op["name"]) for op in step["ops"]) or step["kernel"],
                "cat": short(step["ops"][0]["name"]) if step["ops"] else step["family"] or "others",
                "ph": "X",
                "pid": process,
                "tid": row,
                "ts": round(start, 3),
                "dur": round(1000 * step[key], 3),
                "args": _arguments(step),
            }
            start += 1000 * step[key]


def _arguments(step: Mapping[str, Any]) -> dict[str, Any]:
    """The known figures of a step, which a viewer lists when the step is selected.

    Operations are not counted in copies and in a user's own operators, which therefore have no rate.
    """
    counted = ("operations", "rate", "of_peak") if step["operations"] else ()
    keys = ("index", "kernel", "family", *counted, "share")
    attributes = {
        f"{short(op['name'])} {key}": value
        for op in step["ops"]
        for key, value in op.get("attrs", {}).items()
        if value is not None
    }
    lists = {key: ", ".join(step[key]) for key in ("nodes", "reads", "writes") if step.get(key)}
    return {**lists, **{key: step[key] for key in keys if step[key] is not None}, **attributes}


def _metadata(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
