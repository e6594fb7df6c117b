"""Create the private Python environment of a source tree: .venv, with the packages of a lock file.

Runs before anything is installed, so it uses the standard library only.

1. Take a file lock: if two processes start at the same time, the second one waits and finds .venv complete.
2. Create .venv again, unless it is complete for the basic lock file and only packages are to be added. If it
   had the packages of the developers' lock file, it gets them again.
3. Install with pip, with required hashes and binary wheels only. pip runs from its wheel, which Python's
   ensurepip has; where it is missing (Debian's python3 without python3-venv), it is downloaded and checked.
4. Compile the modules that a build imports, as pip compiles none.
5. Copy the lock file into .venv as the last action: the copy marks the environment as complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import html
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

PIP_WHEEL = (
    "pip-26.3-py3-none-any.whl",
    "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13",
)
BASIC = "requirements.lock"
LOCKED_FOR = ("platform_machine == 'x86_64'", "sys_platform == 'linux'")  # as every marker says
DEVELOPERS = "requirements-dev.lock"  # the packages of the basic lock file and more
EVERY_STAGE = """
import contextlib, importlib
import SCons.Script
import kiln.scons.methods
from kiln.stages import STAGES
for module in [stage.spec.module for stage in STAGES.values()] + ["kiln.stage_server", "onnx", "onnxruntime"]:
    with contextlib.suppress(Exception):
        importlib.import_module(module)
"""


class SetupError(Exception):
    """The installation failed; the message is one line."""


def main(arguments: list[str]) -> int:
    """`environment.py ROOT LOCKFILE`: create ROOT/.venv with the packages of LOCKFILE.

    Returns 0 on success, 2 after printing an error, 130 after Ctrl-C.
    """
    root, lock = Path(arguments[0]), arguments[1]
    try:
        with exclusive(root / ".venv.lock"):
            if not is_whole(root, lock):
                make(root, lock)
    except SetupError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        remedy = (
            "; let a user who may write there run ./kiln once, or use a copy of your own" if refused else ""
        )
        print(f"kiln: error: .venv: {error.filename or ''}: {error.strerror}{remedy}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def is_whole(root: Path, lock: str) -> bool:
    """Whether .venv was completely installed from a lock file with this content, and its Python exists."""
    mark = root / ".venv" / lock
    if not mark.is_file() or mark.read_bytes() != (root / lock).read_bytes():
        return False
    return (root / ".venv/bin/python").exists()


def make(root: Path, lock: str) -> None:
    """Create .venv, or add the packages of the lock file to a complete one."""
    venv, started = root / ".venv", time.monotonic()
    if not is_whole(root, BASIC):
        if (venv / DEVELOPERS).is_file() and (root / DEVELOPERS).is_file():
            lock = DEVELOPERS  # else what ./kiln test had installed would be lost
        say(f"making a private Python environment in {venv} (once; about 1 GB of disk)")
        shutil.rmtree(venv, ignore_errors=True)
        run_venv(venv)
    else:
        say(f"adding what {lock} names to {venv} (once)")
    (venv / lock).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="kiln-pip.") as scratch:
        file = lock_for(root / lock, sys.platform, platform.machine(), Path(scratch))
        install(venv, file, pip_command(venv, Path(scratch)))
    write_bytecode(root)
    marks = [lock] if lock == BASIC else [BASIC, lock]
    for name in marks:
        temporary = venv / f"{name}.partial"
        shutil.copyfile(root / name, temporary)
        os.replace(temporary, venv / name)
    say(f"environment ready after {time.monotonic() - started:.0f} s")


def lock_for(lock: Path, system: str, machine: str, scratch: Path) -> Path:
    """The lock file for a machine: itself, or a copy in `scratch` whose markers name no machine.

    The lock files are made for Linux on x86-64, and all their packages have wheels of the same version, with
    hashes in the lock file, for the other machines. `system` and `machine`: as Python calls them. Raises
    SetupError for a machine that has none.
    """
    if (system, machine) == ("linux", "x86_64"):
        return lock
    if (system, machine) not in (("linux", "aarch64"), ("darwin", "arm64")):
        raise SetupError(
            f"this machine is {system} on {machine}: Kiln's packages exist for Linux on x86-64 and aarch64, "
            "and for macOS on arm64"
        )
    copy = scratch / lock.name
    copy.write_text(re.sub("|".join(LOCKED_FOR), "python_version >= '3'", lock.read_text()))
    return copy


def run_venv(venv: Path) -> None:
    """Create the empty environment without pip, which the lock file has."""
    if importlib.util.find_spec("venv") is None:
        raise SetupError(
            f"{sys.executable} has no venv module; on Debian or Ubuntu: apt install python3-venv"
        )
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(venv)], capture_output=True, text=True
    )
    if made.returncode:
        reason = (made.stderr or made.stdout).strip().splitlines() or ["no reason given"]
        raise SetupError(f"cannot make {venv}: {reason[-1]}; on Debian or Ubuntu: apt install python3-venv")


def pip_command(venv: Path, scratch: Path) -> list[str]:
    """Command line of pip in the environment: its own, else that of a wheel unpacked in `scratch`.

    The wheel is the one in this Python, or is downloaded. It is not installed, which takes seconds: the lock
    file has the pip that stays. The wheel's metadata is left out: by it pip would take the wheel for an
    installed package, and would not install the version of the lock file where it is that of the wheel.
    """
    python = str(venv / "bin/python")
    if any(venv.glob("lib/python3*/site-packages/pip/__main__.py")):
        return [python, "-m", "pip"]
    wheel = bundled_pip()
    if wheel is None:
        wheel = scratch / PIP_WHEEL[0]
        wheel.write_bytes(download_pip())
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if ".dist-info/" not in name]
        archive.extractall(scratch / "unpacked", modules)
    return [python, str(scratch / "unpacked" / "pip")]


def bundled_pip() -> Path | None:
    """The wheel of pip that Python's module ensurepip or the system has; None where there is no whole one."""
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(place, "_bundled") for place in (spec.submodule_search_locations or ())] if spec else []
    folders.append(Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/usr/share/python-wheels"))
    for wheel in (wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))):
        with zipfile.ZipFile(wheel) as archive:
            if "pip/_vendor/urllib3/__init__.py" in archive.namelist():  # some systems take these out
                return wheel
    return None


def download_pip() -> bytes:
    """Download pip's wheel from the configured package index, and check its SHA-256; returns its content.

    Raises SetupError where the index cannot be read or the hash differs.
    """
    name, digest = PIP_WHEEL
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    try:
        with urllib.request.urlopen(index, timeout=60) as page:
            listing = page.read().decode("utf-8", "replace")
        links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', listing)]
        found = next((link for link in links if f"/{name}" in link.split("#")[0]), None)
        if found is None:
            raise SetupError(f"{index} lists no {name}; install python3-venv")
        with urllib.request.urlopen(urllib.parse.urljoin(index, found), timeout=60) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise SetupError(
            f"this Python has no pip and {index} cannot be read ({error}); "
            "on Debian or Ubuntu: apt install python3-venv ca-certificates"
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise SetupError(f"{name} from {index} is not the file that was expected (SHA-256 differs)")
    return data


def install(venv: Path, lock: Path, pip: list[str]) -> None:
    """Install every package of the lock file, with progress on stderr.

    Raises SetupError, with pip's first error, where this fails.
    """
    total = len(re.findall(r"^[A-Za-z0-9]", lock.read_text(), re.MULTILINE))
    # Python compiles a module when it is first imported: most of the 6,000 files never are.
    options = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--no-compile"]
    options += ["--progress-bar", "off"]
    command = [*pip, "install", "--disable-pip-version-check", "--no-input", *options, "-r", str(lock)]
    output: list[str] = []
    unreached: str | None = None
    seen = 0
    shown = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output.append(line.rstrip())
            words = line.split()
            if words[:1] == ["Collecting"] or words[:3] == ["Requirement", "already", "satisfied:"]:
                seen += 1
                shown = progress(
                    f"[{min(seen, total)}/{total}] {words[-1] if len(words) < 3 else words[1]}", shown
                )
            elif words[:1] == ["Installing"]:
                shown = progress("unpacking", 0.0)
            elif unreached is None and (unreached := connection_fault(line)):
                shown = progress("the package index cannot be reached, trying again", 0.0)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if process.returncode and unreached:
        raise SetupError(
            f"cannot install {lock.name}: the package index cannot be reached ({unreached}); the first use "
            "needs a network, or PIP_INDEX_URL with an index that this machine reaches"
        )
    if process.returncode:
        errors = [line for line in output if line.startswith("ERROR:")] or output[-1:] or ["no reason given"]
        raise SetupError(f"cannot install {lock.name}: {errors[-1].removeprefix('ERROR: ')}")


def connection_fault(line: str) -> str | None:
    """The reason in a line of pip that reports a broken connection; None for other lines.

    pip's errors do not tell it: without an index it finds no distribution of the first package.
    """
    found = re.search(r"after connection broken by '(.*)': \S+$|^Could not fetch URL \S+ (.*)$", line.strip())
    if found is None:
        return None
    reason: str = (found[1] or found[2]).strip("')\"")
    return reason.rpartition(": ")[2] or reason


def write_bytecode(root: Path) -> None:
    """Import what a build imports, once, so that the first build finds Python's bytecode.

    What cannot be imported is left to the build, whose error says more.
    """
    package = root / "build_tools"
    if (package / "kiln").is_dir():
        subprocess.run(
            [str(root / ".venv/bin/python"), "-c", EVERY_STAGE],
            env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
            | {"PYTHONPATH": str(package)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def progress(text: str, shown: float) -> float:
    """Show progress: in place on a terminal, else as a line at most every three seconds.

    `shown` is the time of the last line; returns the new one.
    """
    now = time.monotonic()
    if sys.stderr.isatty():
        print(f"\r\033[Kkiln: {text}", end="", file=sys.stderr, flush=True)
    elif now - shown > 3:
        say(text)
        return now
    return shown


def say(text: str) -> None:
    """Print a line of progress to stderr; stdout is for the output of the build."""
    print(f"kiln: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a file lock while the block runs; the system releases it if the process dies."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another ./kiln that is making the environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
