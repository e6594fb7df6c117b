"""Worker processes: started pinned, asked over pipes, and stopped (SIGSTOP) while another has its turn."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 300.0  # seconds for one answer


class WorkerError(Exception):
    """A worker could not answer a request; the message is one line."""


class Worker:
    """A running `python -m benchmarks.worker`. It is a context manager that ends the process."""

    def __init__(self, python: Path, request: Mapping[str, Any], log: Path | None = None) -> None:
        threads = str(request.get("threads", 1))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,  # ncnn's and MNN's pools
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "build_tools")]),  # the benchmark and Kiln
            "PYTHONDONTWRITEBYTECODE": "",
        }
        self.started = time.monotonic()
        self._log, self._said_before = log, 0
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._said_before = log.stat().st_size if log.exists() else 0
        with (log or Path(os.devnull)).open("ab") as noise:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.worker", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise,
                env=environment,
                start_new_session=True,  # so that its own children stop with it
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def answer(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        """The next answer of the worker. Raises WorkerError if it fails, dies, or takes too long."""
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise WorkerError(f"no answer after {timeout:g} s")
        line = stream.readline()  # answers are written whole
        if not line:
            raise WorkerError(f"the process died with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise WorkerError(with_reason(answer["failed"], self._printed()))
        return answer

    def _printed(self) -> str:
        """The text that the process has printed so far; empty without a log."""
        if self._log is None:
            return ""
        with self._log.open("rb") as stream:
            stream.seek(self._said_before)
            return stream.read().decode(errors="replace")

    def turn(self, seconds: float) -> dict[str, Any]:
        """Let the worker run for about `seconds` and stop it again; returns its measurements."""
        stream = self._process.stdin
        assert stream is not None
        self._signal(signal.SIGCONT)
        try:
            stream.write(f"{seconds}\n".encode())
            stream.flush()
            return self.answer()
        except BrokenPipeError:
            raise WorkerError(f"the process died with status {self._process.wait()}") from None
        finally:
            self.pause()

    def pause(self) -> None:
        """Stop the process: its threads that spin between runs would disturb the others."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def with_reason(failed: str, printed: str) -> str:
    """The message `failed`; after a final colon follows the peer's last printed line about an error."""
    if not failed.endswith(":"):
        return failed
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines() if line.strip()]
    telling = [
        line for line in lines if re.search(r"error|not |cannot|fail|unsupported", line, re.IGNORECASE)
    ]
    return f"{failed} {' '.join((telling or lines or ['nothing is said'])[-1].split())[:300]}"


def ask(
    python: Path, request: Mapping[str, Any], log: Path | None = None, timeout: float = TIMEOUT
) -> dict[str, Any]:
    """The answer to one request, by a worker that is started for it. Raises WorkerError."""
    with Worker(python, request, log) as worker:
        return worker.answer(timeout)


def say(text: str) -> None:
    """Print a line to stderr, about progress or something left out."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
