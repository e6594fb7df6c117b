"""Commands of this source tree, run in forks of a process that has imported TVM, SCons and Kiln's stages.

`run_scons` and `run_stage` do what `python -m SCons` and `python -m kiln` do, without the seconds of
processor time that a new interpreter takes to import them. Each command is a process of its own, with its own
environment, folder and exit status. A build's stages run in forks too, see kiln.scons.server_process.

Builds by new interpreters are in tests/conformance/test_scons_*.py and wherever a test starts
`sys.executable`. This file is both a module, the client, and a program, the process that forks.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
_LIMIT = 1800.0  # seconds for one command
_lock = threading.Lock()
_processes: dict[str, subprocess.Popen[str]] = {}  # by what they have imported, see _server
# Third-party and standard modules that every build imports.
_LIBRARIES = (
    "SCons.Script", "email.parser", "importlib.metadata", "pydantic.fields", "pydantic.functional_validators",
    "pydantic.json_schema", "pydantic.main", "pydantic.types", "textwrap", "yaml",
)  # fmt: skip
# What stages of most builds import when they run.
_LATE = (
    "kiln.frontend.onnx.model", "kiln.frontend.tflite.model", "kiln.golden.reference", "kiln.golden.vectors",
    "kiln.report.origins", "numpy.ma", "numpy.random", "tflite", "tvm.relax.frontend.tflite",
)  # fmt: skip


def run_scons(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m SCons` with this tree's SConstruct."""
    return _run("scons", arguments, folder, environment)


def run_stage(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m kiln`, a stage."""
    return _run("stage", arguments, folder, environment)


def run_copy(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], *, imported: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `python -m SCons` in `folder`, a copy of the tree: the fork has imported libraries, but not Kiln.

    `imported`: Kiln too, once for all builds in this folder, where nothing changes its modules.
    """
    return _run("copy", arguments, folder, environment, str(folder) if imported else "libraries")


def processor_seconds() -> float:
    """Processor time of the processes that fork and of all commands that have ended."""
    ticks = 0
    for process in _processes.values():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _run(
    kind: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    imported: str = "tree",
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="kiln-forked-") as place, _lock:
        outputs = [f"{place}/{name}" for name in ("stdout", "stderr")]
        request = {"kind": kind, "arguments": list(arguments), "folder": str(folder), "outputs": outputs}
        server = _server(imported)
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({**request, "environment": dict(environment)}) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], _LIMIT)[0]:
            server.kill()
            raise TimeoutError(f"{kind} {' '.join(arguments)}: still running after {_LIMIT:g} s")
        status = int(server.stdout.readline())
        texts = [Path(output).read_text(encoding="utf-8", errors="replace") for output in outputs]
    return subprocess.CompletedProcess(list(arguments), status, *texts)


def _server(imported: str) -> subprocess.Popen[str]:
    """A process that forks; it starts with the first command, and ends with this process.

    `imported`: "tree" for this tree's stages, "libraries", or the folder of a copy of the tree for its Kiln
    without stages.
    """
    if imported not in _processes:
        path = {"PYTHONPATH": str(ROOT / "build_tools")} if imported == "tree" else {}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        _processes[imported] = subprocess.Popen(
            [sys.executable, __file__, imported],
            env={**inherited, **path, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(_processes[imported].communicate)
    return _processes[imported]


def _become(request: dict[str, Any]) -> None:
    """Run the command of `request` in this fork, and end the process with its exit status."""
    for number, output in enumerate(request["outputs"], start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    status: Any = 0
    try:
        if request["kind"] == "stage":
            from kiln.__main__ import main

            status = main(request["arguments"])
        else:
            import SCons.Script

            if "kiln.scons.methods" in sys.modules:
                from kiln.scons.server_process import fork_servers

                os.environ["PYTHONHASHSEED"] = "0"  # as in the environment that this process was started in
                fork_servers()
            sys.path[0] = str(Path.cwd())
            sys.argv = ["scons", *request["arguments"]]
            SCons.Script.main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else bool(ended.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    _leave(int(status or 0))


def _leave(status: int) -> NoReturn:
    """End this process as Python does, but without the clean-up of imported modules.

    The same as in kiln.stage_server, which a process with another copy of the tree must not import.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def _prepare() -> None:
    """Import and compute what stages and builds of this tree otherwise import and compute in each fork.

    Of libraries that stages import on their own, those that start a thread are left out: see
    `kiln.stage_server`.
    """
    import importlib

    from kiln.emit import source
    from kiln.report import html
    from kiln.scons import digest
    from kiln.stages import STAGES

    for name in _LATE:
        importlib.import_module(name)
    for stage in STAGES:
        digest.of_stage(stage)
    for name in ("model.h.j2", "plan.c.j2", "params.S.j2"):
        source.environment().get_template(name)
    html.environment().get_template("report.html.j2")


def _serve(imported: str) -> None:
    import gc
    import importlib

    for name in _LIBRARIES:
        importlib.import_module(name)
    if imported not in ("tree", "libraries"):
        sys.path.insert(1, f"{imported}/build_tools")
        importlib.import_module("kiln.scons.methods")
    elif imported == "tree":
        from kiln.stages import STAGES

        for stage in STAGES.values():
            importlib.import_module(stage.spec.module)
        importlib.import_module("kiln.scons.methods")
        _prepare()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)  # as in kiln.stage_server
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _become(json.loads(line))
            finally:
                os._exit(70)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
