"""The outcome of a case, and the reason of a refusal without the names and numbers of its case."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HOST = "x86_64"  # the target whose results the others share, unless they are listed apart
PASS, REFUSED, WRONG, CRASH = "pass", "refused", "wrong", "crash"


@dataclass(frozen=True)
class Result:
    """The outcome of a case on a target; detail: the reason, in one line."""

    name: str
    outcome: str
    detail: str = ""
    target: str = HOST

    @property
    def key(self) -> str:
        """The case, and the target unless it is `HOST`."""
        return key_of(self.name, self.target)


def key_of(name: str, target: str) -> str:
    """The name of a result: that of the case, and of the target unless it is `HOST`."""
    return name if target == HOST else f"{name}@{target}"


# What varies between refusals for one reason: nodes, tensors, numbers.
_VARIES = (
    (re.compile(r"operators that cannot be imported: "), ""),
    (re.compile(r"; an operator of your own .*"), ""),
    (re.compile(r" \(node [^)]*\)| \(input '[^']*'\)| \('[^']*'\)"), ""),
    (re.compile(r" '[^']*'"), ""),
    (re.compile(r"R\.Tensor\(.*"), "…"),
    (re.compile(r", allowed: bfloat16, bool.*"), ""),
    (re.compile(r"-?\b\d+(\.\d+)?\b"), "N"),
)


def reason_of(result: Result) -> str:
    """The reason of a refusal, without the names and numbers of its case."""
    text = result.detail
    for pattern, replacement in _VARIES:
        text = pattern.sub(replacement, text)
    return text[:110]


def counts(results: Iterable[Result], target: str, variant: str) -> dict[str, int]:
    """The number of cases of a variant on a target by outcome."""
    chosen = [r for r in results if r.name.endswith(f"/{variant}") and r.target == target]
    return {kind: sum(r.outcome == kind for r in chosen) for kind in (PASS, REFUSED, WRONG, CRASH)}
