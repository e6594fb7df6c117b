"""SIMD check: whether the loops of a kernel are vectorised, read from LLVM's optimised IR.

The check works on IR, not on machine code, and so is the same for every target. It looks at the innermost
loops of the control flow graph, where time is spent (natural loops by back edges: Aho, Lam, Sethi, Ullman,
"Compilers", 9.6). A loop counts as vectorised when its vector loads and stores move at least as many elements
as its scalar loads and stores. The remainder of a vectorised loop does not count as vectorised, and neither
does a loop that gathers elements into a vector one by one; a matmul that reads one factor element by element
does. An element that is loaded to fill a whole vector is no scalar load: a tile of many rows and few columns
has more of them than vectors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kiln.plan.schema import ExpressionArgument, Plan

_LABEL = re.compile(r"^([\w.$-]+|\"[^\"]+\"):")
_TARGET = re.compile(r"label %([\w.$-]+|\"[^\"]+\")")
_MOVED = re.compile(r"(?:= load|store)(?: volatile)? (?:<(\d+) x \w+>|(?:float|double|half|i\d+)\b)")
_LOADED = re.compile(r"(%[\w.$-]+) = load (?:float|double|half|i\d+)\b")
_FIRST = re.compile(r"(%[\w.$-]+) = insertelement <\d+ x \w+> (?:poison|undef), \w+ (%[\w.$-]+), i\d+ 0\b")
_SPLAT = re.compile(r"= shufflevector <\d+ x \w+> (%[\w.$-]+), .* zeroinitializer")
_BULK = re.compile(r"call void @llvm\.mem(?:cpy|set|move)")


@dataclass(frozen=True)
class Loops:
    """Innermost loops of one function that load or store elements: all of them, and the vectorised ones."""

    loops: int
    vectorised: int

    @property
    def scalar(self) -> bool:
        """Whether the function has such loops and none of them is vectorised."""
        return bool(self.loops) and not self.vectorised

    def describe(self) -> dict[str, int]:
        """The counts as an entry of vectors.json."""
        return {"loops": self.loops, "vectorised": self.vectorised}


def read_loops(ir: str, function: str) -> Loops:
    """Count the loops of a function in LLVM's textual IR. Raises KeyError if `ir` does not define it."""
    blocks = _blocks(ir, function)
    follow = {name: _TARGET.findall(_terminator(lines)) for name, lines in blocks.items()}
    loop_counts = [_moved([line for name in body for line in blocks[name]]) for body in _innermost(follow)]
    moving = [(single, wide) for single, wide in loop_counts if single + wide]
    return Loops(len(moving), sum(wide >= single for single, wide in moving))


def scalar_kernels(plan: Plan, vectors: Mapping[str, Mapping[str, int]], least: int) -> set[str]:
    """Kernels of a plan with loops that are not vectorised, according to vectors.json (`vectors`).

    Only kernels of steps whose largest tensor may have `least` bytes or more are returned.
    """
    scalar = {name for name, counts in vectors.items() if Loops(**counts).scalar}
    return {
        step.kernel
        for bucket in plan.buckets
        for step in bucket.steps
        if step.kernel in scalar
        and max(arg.bytes for arg in step.args if not isinstance(arg, ExpressionArgument)) >= least
    }


def _blocks(ir: str, function: str) -> dict[str, list[str]]:
    """Lines of each basic block of a function, by label. Raises KeyError if `ir` does not define it."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in ir.splitlines():
        if line.startswith("define") and f"@{function}(" in line:
            current = blocks.setdefault("entry", [])
        elif current is not None and line.startswith("}"):
            return blocks
        elif current is not None:
            label = _LABEL.match(line) if line[:1] != " " else None
            if label is None:
                current.append(line)
            elif label.group(1) != "entry":
                current = blocks.setdefault(label.group(1), [])
    raise KeyError(function)


def _terminator(lines: list[str]) -> str:
    """The terminator at the end of a block, on one line (a switch covers several lines)."""
    for index in range(len(lines) - 1, -1, -1):
        if re.match(r"\s+(br|switch|ret|unreachable)\b", lines[index]):
            return " ".join(lines[index:])
    return ""


def _innermost(follow: Mapping[str, list[str]]) -> list[set[str]]:
    """The blocks of each innermost loop. `follow`: the successors of each block."""
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
    """Edges (tail, head) whose head is on the current path of a depth-first search from the entry."""
    edges, done, path = [], set(), {"entry"}
    stack = [("entry", iter(follow["entry"]))]
    while stack:
        name, targets = stack[-1]
        target = next(targets, None)
        if target is None:
            stack.pop()
            path.discard(name)
            done.add(name)
        elif target in path:
            edges.append((name, target))
        elif target not in done:
            path.add(target)
            stack.append((target, iter(follow[target])))
    return edges


def _moved(lines: list[str]) -> tuple[int, int]:
    """Number of elements loaded and stored by scalar instructions, and by vector instructions."""
    single = wide = 0
    spread = _spread(lines)
    for line in lines:
        if "load" not in line and "store" not in line and "@llvm.mem" not in line:  # most lines: in less time
            continue
        if _BULK.search(line):
            wide += 16
        loaded = _LOADED.search(line)
        if loaded is not None and loaded.group(1) in spread:
            continue
        for lanes in (match.group(1) for match in _MOVED.finditer(line)):
            wide, single = (wide + int(lanes), single) if lanes else (wide, single + 1)
    return single, wide


def _spread(lines: list[str]) -> set[str]:
    """Names of values that are used only to fill all lanes of a vector."""
    splats = {match.group(1) for match in map(_SPLAT.search, lines) if match}
    if not splats:
        return set()
    firsts = [match.groups() for match in map(_FIRST.search, lines) if match]
    fills = Counter(value for vector, value in firsts if vector in splats)
    uses = Counter(name for line in lines for name in re.findall(r"%[\w.$-]+", line.partition(" = ")[2]))
    return {name for name, count in fills.items() if uses[name] == count}
