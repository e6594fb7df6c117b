"""The answer of a command as JSON: one object for every command and goal, on stdout, also after an error.

`kiln schema result` prints its JSON Schema; docs/json.md explains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kiln import __version__
from kiln.command_line.result_keys import conditions

ErrorCode = Literal[
    "usage",
    "unknown-name",
    "no-such-file",
    "not-installed",
    "budget",
    "limit",
    "test-failed",
    "device",
    "system",
    "interrupted",
    "fault",
    "signature",
    "rejected",
]
# The first pattern that is found in an error's text decides its code.
_CODES: tuple[tuple[ErrorCode, str], ...] = (
    ("interrupted", r"^interrupted"),
    ("fault", r"a fault of Kiln|crashed"),
    ("test-failed", r"test failed|first beyond its limit"),
    ("budget", r"budget exceeded|over its budget"),
    ("limit", r"needs more than .* of memory|not done after .* seconds"),
    (
        "signature",
        r"signature is wrong|not signed|(bundle|it) was signed|signed bundle|an older (bundle|image)",
    ),
    ("not-installed", r"not installed|install (it|them) with|pip install"),
    (
        "unknown-name",
        r"unknown (model|target|device|command|option|goal|key|backend|variant|stage|schema)"
        r"|is not a variant of target|no device is for such a target",
    ),
    (
        "usage",
        r"lists the arguments|is missing: |is given twice|one model is needed|expected one argument"
        r"|option (-\w|'(?!cache|cluster)\w+')|option 'c\w+': ('[^']*': (tcp|http)://HOST|workers exchange)"
        r"|^(joint: at least|traffic: (no|--out)|compare: --)"
        r"|^--[\w-]+\b.*(expected|must end|same key|not a folder)",
    ),
    ("no-such-file", r"no such (model )?(file|folder)|^(?!.*cannot (write|be made)).*No such file"),
    ("device", r"^device |ssh|adb|gdb server|cannot run here"),
    (
        "system",
        r"No space left|Permission denied|cannot (write|read|save|be (made|used|written))|another build"
        r"|^option '(cache|cluster)'|^cluster ",
    ),
)


class _Described(BaseModel):
    """Base of the parts of an answer: no other keys."""

    model_config = ConfigDict(extra="forbid")


class AnswerError(_Described):
    """An error: the line that the command prints without --json, and its kind."""

    code: ErrorCode = Field(description="the kind of the error; docs/json.md lists them")
    text: str = Field(description="one line: file, key or axis, value, what is allowed, what to do")


class AnswerPart(_Described):
    """The result of one goal for one model on one target."""

    goal: str = Field(description="build, test, run, size, …: the command")
    model: str | None = Field(default=None, description="the model's name; null where the goal has none")
    target: str | None = Field(default=None, description="the target's name; null where the goal has none")
    device: str | None = Field(default=None, description="the device's name; null: the target's own runner")
    files: dict[str, str] = Field(default_factory=dict, description="what was written, by its purpose")
    data: Any = Field(default=None, description="the figures; docs/json.md has the keys of each goal")


class CommandAnswer(_Described):
    """The JSON object that a command prints with --json."""

    format: Literal[1] = Field(default=1, description="rises when a key is removed or changes its meaning")
    kiln: str = Field(default=__version__, description="version of Kiln")
    command: str = Field(description="the command, or the goals of a build joined by spaces")
    status: int = Field(
        default=0, description="exit status: 0 done, 1 compare or test found a difference, 2 error"
    )
    error: AnswerError | None = Field(default=None, description="null unless the command failed")
    results: list[AnswerPart] = Field(default_factory=list, description="one entry for each result")
    messages: list[str] = Field(
        default_factory=list, description="lines that goals without figures print; empty for Kiln's own"
    )


@dataclass(frozen=True)
class Reply:
    """The answer to a question: `part` for --json, and `show`, which prints it as text.

    `wrong`: a comparison found a difference beyond its limit.
    """

    part: AnswerPart
    show: Callable[[], object]
    wrong: bool = False


def error_of(line: str) -> AnswerError:
    """The error of a line that a command has printed on stderr."""
    text = re.sub(r"^kiln: (error: )?", "", line)
    codes = (code for code, pattern in _CODES if re.search(pattern, text))
    code: ErrorCode = next(codes, "rejected")
    return AnswerError(code=code, text=text)


def schema() -> dict[str, Any]:
    """JSON Schema of an answer."""
    answer_schema = CommandAnswer.model_json_schema()
    answer_schema["$defs"]["AnswerPart"]["allOf"] = conditions()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **answer_schema}
