"""The end of a stage that failed, was killed by a signal or exceeded a limit, as one line for the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln import doing, limits
from kiln.config.model import StageLimits
from kiln.errors import INTERRUPTED, KilnError
from kiln.files import atomic_write
from kiln.scons.stage_node import StageNode

# The beginning of TVM's log lines, as in "[12:34:56] /project/src/a.cc:67: Warning: …"; it logs after an
# exception too, so the last line of the output need not be the reason of a crash.
_TVM_LOG = re.compile(r"\[\d\d:\d\d:\d\d\] ")


def checked_status(stage: StageNode, status: int | None, seconds: float | None, lines: Sequence[str]) -> int:
    """The exit status of a stage. Raises KilnError for None: the stage exceeded its limit of `seconds`.

    `lines`: what it wrote that is not for the user.
    """
    if status is None:
        while_text, remedy = doing.last(lines)
        fault = f"stopped{while_text}, as it was not done after {seconds} seconds"
        hint = "allow more with the model's key 'limits.seconds'"
        raise KilnError(f"{stage.subject}: {stage.name}: {fault}; {hint}{f', or {remedy}' if remedy else ''}")
    return status


def failure_of(
    stage: StageNode,
    title: str,
    status: int,
    lines: Sequence[str],
    allowed: StageLimits | None,
    target: Sequence[Any],
) -> tuple[str, Any, int]:
    """Error line, nodes and exit status of a failed stage: its own error line, or the path of a crash log.

    `allowed`: the limits that it had.
    """
    of_shell = limits.shell_limit()
    if allowed is not None and limits.ran_out_of_memory(lines):
        memory = f"needs more than {limits.shown(allowed.memory)} of memory"
        remedy = "allow more with the model's key 'limits.memory'"
        if of_shell is not None and of_shell < allowed.memory:
            memory = f"needs more than the {limits.shown(of_shell)} of memory that this shell allows"
            remedy = "allow more with ulimit -v"
        return f"kiln: error: {title}: {memory}; {remedy}", target, 2
    error_lines = [line for line in lines if line.startswith(("kiln: error:", "kiln: test failed:"))]
    if error_lines and not any(line.startswith("Traceback ") for line in lines):
        return error_lines[-1], target, status if status > 0 else 2
    if status in (-signal.SIGINT, 130) or any("KeyboardInterrupt" in line for line in lines[-1:]):
        return INTERRUPTED, target, 2
    log = Path(str(target[0])).parent / f"{stage.name}.log"
    atomic_write(log, "\n".join([*lines, ""]))
    left_out = {*error_lines, *(line for line in lines if _TVM_LOG.match(line) or doing.is_note(line))}
    reasons = [line for line in lines if line not in left_out]
    if status < 0:
        while_text, remedy = doing.last(lines)
        reason = f"{limits.end_text(status)}{while_text}{remedy and f': {remedy}'}"
    else:
        reason = (reasons or ["no reason given"])[-1]
    crashed = " ".join(reason.split())[:300] + limits.shell_hint()
    return f"kiln: error: {title}: crashed: {crashed} (log: {log})", target, 2
