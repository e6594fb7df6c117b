"""Layers of tests, the order and groups in which processes take them, and the processor time they may take.

The folder is on the import path (pytest does so for the folder of every conftest.py), so that tests of all
kinds share the helper modules of this folder.

- A test of `tests/unit` without a marker belongs to the layer `fast`.
- A test marked `slow` builds real models or needs seconds by itself: it is left out of `fast`.
- A test marked `heavy` runs in `./kiln test all` and where its file is named, not in the gate.
- Of a test in `every` of budgets.yaml, the gate runs the first case and each n-th after it; others are heavy.

Tests of one file stay together in one process, because they share fixtures; those of the files in APART stay
together with the tests of the same last parameter, those of the files in TOGETHER all with one another.
"""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from kiln.scratch import scratch_folder

HERE = Path(__file__).resolve().parent
BUDGETS = yaml.safe_load((HERE / "budgets.yaml").read_text(encoding="utf-8"))
MARGIN = 2.0  # by which a folder must exceed its budget before `./kiln test budget` fails
APART = {"device/test_models_golden.py"}  # by model: the next target finds what the first one made
# Files that look at the whole source: one process parses it for all of them.
TOGETHER = {
    "unit/config/test_read.py", "unit/setup/test_packages.py", "unit/stages/test_declarations.py",
    "unit/test_docstrings.py", "unit/test_import_order.py", "unit/test_lengths.py",
    "unit/test_same_everywhere.py", "unit/test_twins.py",
}  # fmt: skip
_COLLECT = (50_000, 50, 100)  # see gc.set_threshold; as in kiln.stage_server
_EXCEEDED: pytest.StashKey[list[str]] = pytest.StashKey()
_spent: Counter[str] = Counter()  # processor seconds by file
_before = 0.0

# TVM looks at the callers of each script of a kernel. The lines of their source, which it does not need,
# would take a quarter of the time in which tests are collected.
inspect.stack = functools.partial(inspect.stack, 0)

# As in ./kiln: hundreds of processes would compile the same modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", action="store_true", help="fail when a folder takes much more than its budget"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage rarely; let started programs import kiln; make the folders that all processes share.

    Temporary files of tests, and of processes that they kill, are in a folder that is removed at the end.
    Those of failed tests, which pytest keeps, are not.
    """
    gc.set_threshold(*_COLLECT)
    paths = [str(HERE.parent / "build_tools"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        held = scratch_folder("tests")
        folder = held.__enter__()
        config.add_cleanup(functools.partial(held.__exit__, None, None, None))
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        os.environ["KILN_TEST_STAGES"] = tempfile.mkdtemp(prefix="kiln-stages-")


@pytest.fixture(scope="session", autouse=True)
def _signals_end_started_programs() -> None:
    """Let signals that a runner ignores, as nohup does SIGHUP, end the programs that tests start.

    Programs inherit that a signal is ignored, but not that a function handles it.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the layer `fast` and cases that the gate leaves out; start with the files that take longest."""
    numbers: Counter[str] = Counter()
    for item in items:
        function = _file(item.nodeid) + "::" + item.nodeid.split("::")[-1].split("[")[0]
        if not item.get_closest_marker("heavy"):
            if numbers[function] % BUDGETS["every"].get(function, 1):
                item.add_marker(pytest.mark.heavy)
            numbers[function] += 1
        if item.path.is_relative_to(HERE / "unit") and not any(
            map(item.get_closest_marker, ("slow", "heavy"))
        ):
            item.add_marker(pytest.mark.fast)
    first = {name: rank for rank, name in enumerate(BUDGETS["first"])}
    items.sort(key=lambda item: first.get(_file(item.nodeid), len(first)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests to processes in groups, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = _file(nodeid)
            if file in TOGETHER:
                return "source"
            return f"{file} {nodeid.rpartition('-')[2]}" if file in APART else file

    return Groups(config, log)


def _file(nodeid: str) -> str:
    """`unit/test_files.py` of `tests/unit/test_files.py::test_name`."""
    return nodeid.split("::")[0].removeprefix("tests/")


def _processor_seconds() -> float:
    """Processor seconds so far of this process, of children that have ended, and of forked commands."""
    return sum(os.times()[:4]) + forked.processor_seconds()


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, and start the clock."""
    global _before
    gc.collect()
    gc.freeze()
    _before = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Add the processor time since the report before."""
    global _before
    report = yield
    now = _processor_seconds()
    report.user_properties.append(("processor_seconds", now - _before))  # type: ignore[attr-defined]
    _before = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent[_file(report.nodeid)] += sum(
        seconds for name, seconds in report.user_properties if name == "processor_seconds"
    )


def _speed() -> float:
    """The time of a fixed piece of work here and now, relative to the machine of budgets.yaml."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(1_000_000))
        taken.append(time.process_time() - began)
    return sorted(taken)[2] / float(BUDGETS["calibration"])


def _folders() -> dict[str, float]:
    """Processor seconds by folder."""
    folders: Counter[str] = Counter()
    for file, seconds in _spent.items():
        folders[file.split("/")[0]] += seconds
    return dict(sorted(folders.items()))


def _exceeded() -> list[str]:
    """A line for each folder that took more than MARGIN times its budget."""
    speed, lines = _speed(), []
    for folder, seconds in _folders().items():
        budget = BUDGETS["folders"].get(folder, 0)
        if seconds / speed > MARGIN * budget:
            lines.append(
                f"budget exceeded: tests/{folder} took {seconds:.0f} s, {seconds / speed:.0f} s at the speed "
                f"of tests/budgets.yaml; the budget is {budget} s, the limit {MARGIN * budget:.0f} s"
            )
    return lines


def _without_reports_of_onnxsim() -> None:
    """Close the errors' stream at the end of this process, if it has imported onnxsim.

    onnxsim keeps an object of its own for good, and its library nanobind would report 40 lines of leaks.
    """
    if "onnxsim" in sys.modules:
        atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With --budget, fail where a folder took too long.

    What is left, such as two million nodes of syntax trees, is excluded from pytest's last collections.
    """
    gc.freeze()
    _without_reports_of_onnxsim()
    config = session.config
    if config.option.budget and not hasattr(config, "workerinput"):
        config.stash[_EXCEEDED] = _exceeded()
        if config.stash[_EXCEEDED] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the processor time by folder, and of the longest files: eight, or the number in --durations."""
    if not _spent:
        return
    terminalreporter.section("processor time")
    for folder, seconds in _folders().items():
        budget = BUDGETS["folders"].get(folder, 0)
        terminalreporter.line(f"tests/{folder}: {seconds:.0f} s, budget of the gate {budget} s")
    durations = config.option.durations  # None: not given; 0: all
    files = _spent.most_common(8 if durations is None else durations or None)
    longest = ", ".join(f"{file} {seconds:.0f} s" for file, seconds in files)
    terminalreporter.line(f"longest: {longest}")
    for line in config.stash.get(_EXCEEDED, []):
        terminalreporter.line(line, red=True)
