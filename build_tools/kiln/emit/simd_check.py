"""Whether LLVM's code for a kernel works on vectors: read from its optimised IR, so for every target alike.

The innermost loops of the control flow graph are where time goes (natural loops by back edges: Aho, Lam,
Sethi, Ullman, "Compilers", 9.6). A loop works on vectors when its loads and stores of vectors move at least
as many elements as those of single numbers: the remainder of a vectorised loop does not, nor does one that
gathers elements into a vector one by one, while a matrix product that reads one factor at a time does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.config import sizes

_LABEL = re.compile(r"^([\w.$-]+|\"[^\"]+\"):")
_TARGET = re.compile(r"label %([\w.$-]+|\"[^\"]+\")")
_MOVED = re.compile(r"(?:= load|store)(?: volatile)? (?:<(\d+) x \w+>|(?:float|double|half|i\d+)\b)")
_BULK = re.compile(r"call void @llvm\.mem(?:cpy|set|move)")


@dataclass(frozen=True)
class Loops:
    """Of one function: how many innermost loops move elements, and how many of those by vectors."""

    loops: int
    vectorised: int

    @property
    def scalar(self) -> bool:
        """Whether it has loops that move elements, and none of them by vectors."""
        return bool(self.loops) and not self.vectorised

    def describe(self) -> dict[str, int]:
        return {"loops": self.loops, "vectorised": self.vectorised}


def read_loops(ir: str, function: str) -> Loops:
    """What LLVM's textual IR says of a function that it defines. Raises KeyError where it does not."""
    blocks = _blocks(ir, function)
    follow = {name: _TARGET.findall(_terminator(lines)) for name, lines in blocks.items()}
    found = [_moved([line for name in body for line in blocks[name]]) for body in _innermost(follow)]
    moving = [(single, wide) for single, wide in found if single + wide]
    return Loops(len(moving), sum(wide >= single for single, wide in moving))


def scalar_kernels(plan: Mapping[str, Any], vectors: Mapping[str, Mapping[str, int]], least: int) -> set[str]:
    """The kernels of plan.json that work on single numbers, as vectors.json says.

    Only of steps whose largest tensor has `least` bytes or more.
    """
    scalar = {name for name, found in vectors.items() if Loops(**found).scalar}
    return {
        step["kernel"]
        for bucket in plan["buckets"]
        for step in bucket["steps"]
        if step["kernel"] in scalar
        and max(sizes.bounds(item.get("bytes", 0), _box(bucket))[1] for item in step["args"]) >= least
    }


def _box(bucket: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (part["min"], part["max"]) for name, part in bucket["dims"].items()}


def _blocks(ir: str, function: str) -> dict[str, list[str]]:
    """The lines of each basic block, by label."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in ir.splitlines():
        if line.startswith("define") and f"@{function}(" in line:
            current = blocks.setdefault("entry", [])
        elif current is not None and line.startswith("}"):
            return blocks
        elif current is not None:
            label = _LABEL.match(line)
            if label is None:
                current.append(line)
            elif label.group(1) != "entry":
                current = blocks.setdefault(label.group(1), [])
    raise KeyError(function)


def _terminator(lines: list[str]) -> str:
    """The branch at a block's end; one of a switch covers several lines."""
    for index in range(len(lines) - 1, -1, -1):
        if re.match(r"\s+(br|switch|ret|unreachable)\b", lines[index]):
            return " ".join(lines[index:])
    return ""


def _innermost(follow: Mapping[str, list[str]]) -> list[set[str]]:
    """The blocks of each loop that holds no other loop."""
    before: dict[str, list[str]] = {name: [] for name in follow}
    for name, targets in follow.items():
        for target in targets:
            before[target].append(name)
    bodies: dict[str, set[str]] = {}
    for tail, head in _back_edges(follow):
        body = bodies.setdefault(head, {head})
        waiting = [tail]
        while waiting:
            name = waiting.pop()
            if name not in body:
                body.add(name)
                waiting += before[name]
    return [
        body for head, body in bodies.items() if not any(other in body for other in bodies if other != head)
    ]


def _back_edges(follow: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Edges to a block that is still being visited, depth first from the entry."""
    found, done, path = [], set(), {"entry"}
    stack = [("entry", iter(follow["entry"]))]
    while stack:
        name, targets = stack[-1]
        target = next(targets, None)
        if target is None:
            stack.pop()
            path.discard(name)
            done.add(name)
        elif target in path:
            found.append((name, target))
        elif target not in done:
            path.add(target)
            stack.append((target, iter(follow[target])))
    return found


def _moved(lines: list[str]) -> tuple[int, int]:
    """Elements that instructions load and store one at a time, and by vectors."""
    single = wide = 0
    for line in lines:
        if _BULK.search(line):
            wide += 16
        for lanes in (match.group(1) for match in _MOVED.finditer(line)):
            wide, single = (wide + int(lanes), single) if lanes else (wide, single + 1)
    return single, wide
