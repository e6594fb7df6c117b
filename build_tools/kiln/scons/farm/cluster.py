"""The build's side of a cluster: hands stages to Dask's scheduler, and brings their outputs back.

`cluster=tcp://host:8786` uses a scheduler that runs, `cluster=local:4` starts one with four workers on this
machine. The scheduler gives the stages of a worker that dies to other workers; a stage that takes several
workers with it fails.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.interpreter import module_command
from kiln.scons.farm import worker
from kiln.scons.farm.facts import difference, facts
from kiln.scons.server_process import stage_environment
from kiln.scons.storage import DamagedError, StorageError, open_storage
from kiln.scratch import scratch_folder

CONNECT = 10.0  # seconds for an answer of the scheduler, and for its first worker
PATIENCE = 60.0  # seconds without any worker after which a build ends
_RECORD_AGE = 5.0  # seconds for which the scheduler's records of its workers are not fetched again
_MOST_LOCAL = 256
_LOCAL = re.compile(r"local:([1-9]\d*)")
_LOCAL_PROGRAM = tuple(module_command("kiln.scons.farm.local"))
_ERROR = re.compile(r"\S*(Error|Exception|Interrupt)\b")  # the last line of a traceback
_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://\S+")
_START = "start one with: dask worker ADDRESS --nthreads 1"

_chosen: list[str] = []


def choose(text: str) -> None:
    """Run stages on the cluster `text`. Raises KilnError where it is neither local:N nor an address."""
    local = _LOCAL.fullmatch(text)
    if not (local and int(local[1]) <= _MOST_LOCAL) and not _ADDRESS.fullmatch(text):
        raise KilnError(
            f"option 'cluster': '{text}': tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or local:N with "
            f"N from 1 to {_MOST_LOCAL}"
        )
    _chosen[:] = [text]


def cluster_of_build(storage: str | None) -> Cluster | None:
    """The cluster of this build, connected; None without the option.

    `storage`: the text of the build's cache, None without one. Raises KilnError for a cluster that cannot be
    used.
    """
    return Cluster(_chosen[0], storage) if _chosen else None


def _check_certificates(address: str) -> None:
    """Raise KilnError where Dask's settings name no certificates, or files that cannot be used.

    Dask's client would fail as well, but only end when it has waited for itself for 20 seconds.
    """
    try:
        if _distributed().Security().get_connection_args("client").get("ssl_context") is not None:
            return
        reason = "no certificates are set"
    except OSError as error:  # SSLError is one
        reason = f"{error.filename or 'a certificate or key'}: {error.strerror or error}"
    raise KilnError(
        f"option 'cluster': {address}: {reason}; DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and "
        "…__CLIENT__KEY name their files, see docs/farm.md"
    )


class Cluster:
    """A connection to a scheduler. `width` is the number of stages that its workers run at a time."""

    def __init__(self, text: str, storage: str | None) -> None:
        local = _LOCAL.fullmatch(text)
        distributed = _distributed()
        if storage is None and not local:
            raise KilnError(
                "option 'cluster': workers exchange files through a cache: cache=FOLDER that they all see, "
                "cache=http://… or cache=s3://…"
            )
        if text.startswith(("tls:", "wss:")):
            _check_certificates(text)
        # The build prints its own message when a worker or the scheduler is lost. Dask gives the client's
        # logger a level of its own; Tornado reports callbacks of a client that end after it.
        for logger in ("distributed", "distributed.client", "tornado.application"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        if storage is None:
            scratch = contextlib.ExitStack()
            atexit.register(scratch.close)
            storage = str(scratch.enter_context(scratch_folder("cache")))
        self.storage = open_storage(storage)
        self._lock, self._fetched_at, self._worker_records = threading.Lock(), -math.inf, dict[str, Any]()
        self.address = self._start(int(local[1])) if local else text
        try:
            self._client = distributed.Client(self.address, timeout=CONNECT, set_as_default=False)
        except Exception as error:  # of the network, of TLS, of another version's protocol
            reason = " ".join(str(error).split()) or type(error).__name__
            raise KilnError(
                f"option 'cluster': no scheduler answers at {self.address}: {reason[:200]}; "
                "start one with: dask scheduler"
            ) from None
        atexit.register(self.close)
        self._check_workers()
        workers = self._workers()
        if not workers:  # they have gone meanwhile, or the scheduler has
            raise self._lost()
        self.width = sum(record["nthreads"] for record in workers.values())
        self._dashboard = self._client.dashboard_link or ""

    def description(self) -> str:
        """A text for the user: the cluster's address, workers and dashboard."""
        count = len(self._workers())
        workers = f"{count} worker{'s' if count > 1 else ''}"
        return (
            f"cluster {self.address}: {workers}, {self.width} stages at a time, dashboard {self._dashboard}"
        )

    def offers(self, resource: str) -> float:
        """The most of a resource that one worker has; 0 where none has it."""
        return max(
            (float(record["resources"].get(resource, 0)) for record in self._workers().values()), default=0
        )

    def run(
        self,
        name: str,
        task: Mapping[str, Any],
        resources: Mapping[str, float],
        alive: Callable[[], object],
        stopped: Callable[[], bool],
    ) -> dict[str, Any]:
        """Run a stage on a worker; returns the result of `worker.run`.

        `alive` is called about once a second; once `stopped` returns True, the stage is given up and
        KeyboardInterrupt raised. Raises KilnError where no worker can run the stage.
        """
        message = {**task, "cache": self.storage.text, "facts": dict(facts())}
        future = self._client.submit(
            worker.run,
            message,
            key=f"{name}-{uuid.uuid4().hex}",
            pure=False,
            resources=dict(resources) or None,
        )
        try:
            result = self._wait(future, alive, stopped)
        finally:
            future.release()  # a stage that still runs is killed by its worker
        if "error" in result:
            raise KilnError(f"worker {result['worker']}: {result['error']}")
        return result

    def close(self) -> None:
        """Disconnect; the workers kill stages of this build that still run."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)

    def _wait(self, future: Any, alive: Callable[[], object], stopped: Callable[[], bool]) -> dict[str, Any]:
        # Not future.result(timeout=1): on a loaded machine it may raise an error of its own in place of a
        # time-out (distributed.utils.sync, when the time is over just as the answer comes).
        ended, last_worker_at = threading.Event(), time.monotonic()
        future.add_done_callback(lambda _: ended.set())
        while not ended.wait(1) and not future.done():
            alive()
            if stopped():
                raise KeyboardInterrupt
            if self._client.status != "running":
                raise self._lost()
            if self._workers():
                last_worker_at = time.monotonic()
            elif time.monotonic() - last_worker_at > PATIENCE:
                raise KilnError(f"cluster {self.address}: it has no workers any more; {_START}")
        try:
            result: dict[str, Any] = future.result()
            return result
        except _distributed().KilledWorker:
            raise KilnError(
                f"cluster {self.address}: every worker that ran this stage has died; if it needs more memory "
                "than they have, give them more or build without cluster="
            ) from None
        except Exception as error:  # of the scheduler, or of a worker without Kiln
            if "scheduler-connection-lost" in str(error) or self._client.status != "running":
                raise self._lost() from None
            reason = " ".join(str(error).split()) or type(error).__name__
            raise KilnError(f"cluster {self.address}: {reason[:300]}") from None

    def _lost(self) -> KilnError:
        return KilnError(f"cluster {self.address}: the scheduler is gone; start the build again, without it "
                         "or when it is back")  # fmt: skip

    def _workers(self) -> dict[str, Any]:
        """The scheduler's records of its workers, by address; fetched every few seconds at most."""
        with self._lock:
            if time.monotonic() - self._fetched_at > _RECORD_AGE:
                try:
                    self._worker_records = self._client.scheduler_info(n_workers=-1)["workers"]
                except Exception:  # the scheduler is gone: `_wait` notices
                    self._worker_records = {}
                self._fetched_at = time.monotonic()
            return self._worker_records

    def _check_workers(self) -> None:
        """Raise KilnError for a worker with other versions than here, or that cannot read the cache."""
        try:
            self._client.wait_for_workers(1, timeout=CONNECT)
        except Exception:
            raise KilnError(f"option 'cluster': {self.address} has no workers; {_START}") from None
        probe = uuid.uuid4().hex.encode()
        sha256 = hashlib.sha256(probe).hexdigest()
        try:
            with tempfile.NamedTemporaryFile() as file:
                file.write(probe)
                file.flush()
                self.storage.put(Path(file.name), sha256)
        except StorageError as error:
            raise KilnError(f"option 'cluster': the cache cannot be written: {error}") from None
        try:
            answers = self._client.run(_probe_answer, self.storage.text, sha256, on_error="return")
        except Exception:  # of the connection: an answer with an error is an answer
            raise self._lost() from None
        for address, answer in sorted(answers.items()):
            if isinstance(answer, Exception):
                reason = f"Kiln is missing there, or another version: {' '.join(str(answer).split())[:200]}"
            else:
                reason = difference(answer["facts"], facts()) or answer["cache"]
            if reason:
                raise KilnError(f"option 'cluster': worker {address}: {reason}")

    def _start(self, count: int) -> str:
        """Start a scheduler and `count` workers on this machine; returns the scheduler's address.

        They run in a session of their own, so that Ctrl-C reaches only the build.
        """
        log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        process = subprocess.Popen(
            [*_LOCAL_PROGRAM, str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env=stage_environment(), text=True,
        )  # fmt: skip
        atexit.register(_end_local_cluster, process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) < 1:
            status = process.wait()
            log.seek(0)
            reason = _end(status, log.read().decode(errors="replace"))
            raise KilnError(f"option 'cluster': no cluster on this machine: {reason}")
        return words[0]


def _end(status: int, log: str) -> str:
    """Why the process of a local cluster has ended; `log`: its stderr, where Dask's lines of progress are."""
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name} while it started"
    errors = [line.strip() for line in log.splitlines() if _ERROR.match(line)]
    return (errors or [f"its process ended with status {status} while it started"])[-1][:300]


def _probe_answer(storage: str, sha256: str) -> dict[str, Any]:
    """On a worker: its facts, and the reason why it cannot read the cache, if there is one."""
    try:
        with scratch_folder("probe") as folder:
            open_storage(storage).get(sha256, folder / "probe")
        fault = None
    except DamagedError:
        fault = f"it does not see the cache {open_storage(storage).shown} of this build"
    except (StorageError, KilnError, OSError) as error:
        fault = f"it cannot read the cache: {error}"
    return {"facts": dict(facts()), "cache": fault}


@functools.cache
def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        pip = f"{sys.executable} -m pip install distributed bokeh"
        raise KilnError(f"option 'cluster' needs the package distributed: {pip}") from None
    return distributed


def project() -> str:
    """A name for this folder on this machine."""
    return hashlib.sha256(f"{socket.gethostname()}:{os.getcwd()}".encode()).hexdigest()[:16]  # noqa: PTH109


def _end_local_cluster(process: subprocess.Popen[str]) -> None:
    """End a local cluster: it notices that its standard input is closed."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
