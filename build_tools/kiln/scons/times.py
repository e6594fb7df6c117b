"""Records of the stages that a build ran, with their times: for simulations of larger builds.

The variable KILN_STAGE_TIMES of the environment names a file, which gets a JSON object on a line for each
stage: name, subject, seconds, whether other machines may run it, the files that it read, and its outputs. The
last line has the processor seconds of the build's own process, without those of stages: `processor`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "KILN_STAGE_TIMES"
_lock = threading.Lock()


def record(
    name: str, subject: str, seconds: float, shared: bool, inputs: Sequence[Path], outputs: Sequence[str]
) -> None:
    """Append a record if KILN_STAGE_TIMES is set. Raises OSError where the file cannot be written."""
    if not os.environ.get(VARIABLE):
        return
    sizes = {str(path): path.stat().st_size for path in inputs if path.is_file()}
    line = {
        "name": name, "subject": subject, "seconds": seconds, "shared": shared, "inputs": sizes,
        "outputs": list(outputs),
    }  # fmt: skip
    with _lock:
        _append(line)
        _record_processor_time_at_exit()


@functools.cache
def _record_processor_time_at_exit() -> None:
    atexit.register(lambda: _append({"processor": time.process_time()}))


def _append(line: Mapping[str, Any]) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
