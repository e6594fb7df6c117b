"""A copy of the project in which every stage is a stand-in, to test the build around them.

A stand-in's outputs are hashes of all that it was given, so a stage that should have run again and did not
shows in the bundle. Environment: FAKE_LOG names a file that gets a line for every stage run, FAKE_SECONDS is
how long each one takes, FAKE_FAIL, FAKE_CRASH and FAKE_SIGNAL name a stage that ends with an error, a
traceback or SIGSEGV, FAKE_KILL the output of a stage that kills the build when it has half of its files.
FAKE_STUCK names a stage that starts a program and waits for it for ever, FAKE_LEAVES one that does not wait
for it, FAKE_EATS one that takes a gibibyte of memory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
from kiln.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
RESNET = ("target=aarch64", "model=resnet")
_MODULES = sorted(path.name for path in (ROOT / "build_tools" / "kiln").glob("*.py"))
_REAL = (
    *_MODULES,
    "config",
    "device/check/host_cpu.py",
    "scons",
    "stages",
    "sources/cache.py",
    "sources/onnx_data.py",
    "sources/torch_archive.py",
    "sources/torch_dims.py",
    "sources/torch_model.py",
)
_STAND_IN = """
import hashlib, os, signal, subprocess, time
from pathlib import Path
from kiln import doing
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, write_json
from kiln.stage import Output, Scratch, Unhashed

# Files of folders that only the stage knows.
LISTED = {
    "golden": ["golden.json", "a.bin", "b.bin"],
    "emit-objects": ["one.o", "two.o"],
    "compile": ["x.o"],
    "link": ["lib/lib{model}.a", "include/{model}.h"],
}
MORE = {"bundle": ["golden/golden.json"]}


def run(stage):
    name, out, show = stage.spec.name, getattr(stage, "out", None), getattr(stage, "show", None)
    if "FAKE_LOG" in os.environ:
        with open(os.environ["FAKE_LOG"], "a") as stream:
            stream.write(f"{name} {out or show}\\n")
    if os.environ.get("FAKE_FAIL") == name:
        raise KilnError(f"{name} cannot do this")
    if os.environ.get("FAKE_CRASH") == name:
        raise RuntimeError("out of ideas\\n[12:34:56] /project/src/a.cc:67: Warning: blocks remain")
    if os.environ.get("FAKE_LEAVES") == name:
        left = subprocess.Popen(["sleep", "1000"])
        Path(os.environ["FAKE_LOG"]).write_text(str(left.pid))
    if os.environ.get("FAKE_SIGNAL") == name:
        with doing.noted("a library ran the model", "try another one"):
            os.kill(os.getpid(), signal.SIGSEGV)
    if os.environ.get("FAKE_STUCK") == name:
        program = subprocess.Popen(["sleep", "1000"])
        Path(os.environ["FAKE_LOG"]).write_text(str(program.pid))
        program.wait()
    if os.environ.get("FAKE_EATS") == name:
        bytearray(1 << 30)
    seconds = float(os.environ.get("FAKE_SECONDS", "0"))
    time.sleep(seconds / 2)
    if name.startswith("device-") or show:
        print(f"{name} speaks")
    if out is None:
        return
    # What buckets agree on is mostly nothing: another bucket does not change it.
    content = "{}" if name == "packings" else digest(stage)
    if getattr(stage, "dump", None):
        stage.dump.mkdir(parents=True, exist_ok=True)
        Path(stage.dump, "dump.txt").write_text("IR")
    [kind] = [one.kind for one in stage.fields() if one.name == "out"]
    files = kind.files or (LISTED[name] if kind.listed else ())
    if not files:
        atomic_write(out, content)
        return
    model = out.name if name == "bundle" else out.parent.name
    with atomic_dir(out) as folder:
        for index, file in enumerate([*files, *MORE.get(name, [])]):
            if file != "manifest.json":
                atomic_write(folder / file.replace("{model}", model), f"{content} {index}\\n" * 1000)
        if os.environ.get("FAKE_KILL") == str(out):
            # The build's process is the parent of the server that this process was forked from.
            server = Path("/proc", os.environ["KILN_PARENT"], "stat").read_text()
            os.kill(int(server.rpartition(")")[2].split()[1]), 9)
            time.sleep(60)
        time.sleep(seconds / 2)  # killed now, it leaves a folder that is not whole
        if name == "bundle":
            made = [f for f in sorted(folder.rglob("*")) if f.is_file()]
            entries = [{"name": str(f.relative_to(folder)), "bytes": f.stat().st_size} for f in made]
            write_json(folder / "manifest.json", {"name": model, "files": entries})
    if name == "bundle":
        atomic_write(stage.archive, content)


def digest(stage):
    found = hashlib.sha256(stage.spec.name.encode())
    for one, values in sorted(stage.values(), key=lambda pair: pair[0].name):
        if isinstance(one.kind, (Output, Scratch, Unhashed)):
            continue
        for value in values:
            path = Path(value) if isinstance(value, Path) else Path("/nonexistent")
            files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.is_file() else []
            found.update(f"{one.name} {len(files)}".encode())
            for file in files:
                if file.is_file():
                    found.update(file.read_bytes())
    return found.hexdigest()
"""


class StandInProject:
    """A scratch project, and a log of the stages that its builds ran.

    `lasting`: its builds are forks of a process that has imported its Kiln, so that no test may change
    modules other than those of stages.
    """

    def __init__(self, folder: Path, *, lasting: bool = False) -> None:
        self.folder = folder
        self.lasting = lasting
        self.log = folder / "stages.log"
        for name in ("SConstruct", "targets", "models", "runtime_c"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, folder / name)
        package = folder / "build_tools" / "kiln"
        package.mkdir(parents=True)
        for name in _REAL:
            source = ROOT / "build_tools" / "kiln" / name
            # With their times and what Python has compiled of them, which takes as long as a build.
            if source.is_dir():
                shutil.copytree(source, package / name)
            else:
                (package / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, package / name)
                compiled = Path(importlib.util.cache_from_source(str(source)))
                if compiled.is_file():
                    (package / name).parent.joinpath("__pycache__").mkdir(exist_ok=True)
                    shutil.copy2(compiled, (package / name).parent / "__pycache__")
        self.programs = folder / "programs"
        self.programs.mkdir()
        for emulator in ("qemu-aarch64", "qemu-arm"):  # which the stand-ins never start
            (self.programs / emulator).touch(0o755)
        (package / "stand_in.py").write_text(_STAND_IN)
        for module in [stage.spec.module for stage in STAGES.values()]:
            path = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
            if module.startswith("kiln.config"):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text("from kiln.stand_in import run as run\n")

    def command(self, *arguments: str) -> list[str]:
        """How SCons is called; -Q as the wrapper does."""
        return [sys.executable, "-m", "SCons", "-Q", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a build."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KILN_")}
        kept.pop("PYTHONPATH", None)
        return {
            **kept,
            "FAKE_LOG": str(self.log),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "QEMU_LD_PREFIX": str(self.programs),
            "TMPDIR": str(self.programs),  # a test's last build may be killed, and no next one cleans up
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **more,
        }

    def scons(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Build, and log the stages for `ran`; in a fork, unless `more` has a variable of Python."""
        self.log.write_text("")
        if not any(name.startswith("PYTHON") for name in more):
            words, environment = ["-Q", *arguments], self.environment(**more)
            return forked.run_copy(words, self.folder, environment, imported=self.lasting)
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def build(self, *arguments: str, **more: str) -> list[str]:
        """Build, which must work; the stages that ran, as "stage output"."""
        done = self.scons(*arguments, **more)
        # The last processes of a build that was killed may still be ending, and then this one waits for them.
        printed = done.stderr.replace("kiln: waiting for another build in this folder\n", "")
        assert (done.returncode, printed) == (0, ""), done.stdout + done.stderr
        return self.ran()

    def ran(self) -> list[str]:
        """The stages that the last build ran."""
        return sorted(self.log.read_text().split("\n"))[1:]

    def bundle_digest(self, bundle: str) -> dict[str, str]:
        """Every file of a bundle and its archive."""
        folder = self.folder / "build" / bundle
        files = [path for path in folder.rglob("*") if path.is_file()]
        contents = {str(path.relative_to(folder)): path.read_text() for path in files}
        return {**contents, "archive": (folder.parent / f"{folder.name}.tar.gz").read_text()}

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file of the project; it must be there once at least."""
        file = self.folder / path
        text = file.read_text()
        assert old in text, f"{path} does not hold {old!r}"
        file.write_text(text.replace(old, new))

    def json(self, path: str) -> object:
        """A JSON file of the project."""
        return json.loads((self.folder / path).read_text())
