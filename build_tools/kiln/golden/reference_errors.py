"""Why a reference cannot run a model: its own words, without what is around them, and the ways out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kiln.errors import KilnError

KERNELS = {"builtin": "BUILTIN", "builtin_ref": "BUILTIN_REF"}  # LiteRT's, by the key `golden.reference`

# What ONNX Runtime writes around the reason: its own source file, line, function and condition.
_AROUND = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Non-zero status code returned while running (\w+) node\. "
    r"Name:'(.*?)' Status Message: )?(?:/\S+:\d+ .*?\) (?=[\w!(])(?:\S+ [=!<>]+ \S+ was false\. )?)?"
)


def reason(error: BaseException) -> str:
    """Why a reference cannot run a model: the node, and the reason in the words of the library."""
    text = " ".join(str(error).split()) or type(error).__name__
    match = _AROUND.match(text)
    if match is None:
        return re.sub(r"(?<=\w)Node number", "; node number", text)  # LiteRT's, without a separator
    node = f"{match[1]} (node {match[2] or 'without a name'}): " if match[1] else ""
    return node + text[match.end() :]


def other_way(about: Mapping[str, Any]) -> str:
    """How golden vectors can be made where a reference ends the process that runs it."""
    inputs = "choose other inputs with the model's key 'golden.inputs'"
    kernels = about["settings"].get("op_resolver")
    if kernels is not None:
        other = next(name for name, resolver in KERNELS.items() if resolver != kernels)
        return f"try its other kernels, 'golden.reference: {other}', or {inputs}"
    if about["name"] == "torch":
        return f"export the module to ONNX, which ONNX Runtime runs, or {inputs}"
    return inputs


class CannotRunError(KilnError):
    """A reference cannot run a model on some inputs. `advice`: what helps if the inputs are golden."""

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(f"{path}: {reason}: {advice}")
        self.reason = reason
        self.advice = advice
