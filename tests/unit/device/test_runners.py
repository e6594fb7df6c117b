"""Runners: files are sent and fetched, limits hold, and a missing program is named with its remedy."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kiln import packages
from kiln.config import Target, load_target
from kiln.config.host import LEVELS
from kiln.device.bundle import Bundle
from kiln.device.check import host_cpu, runners
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners import qemu_user
from kiln.device.check.runners.local import LocalRunner
from kiln.device.check.runners.remote import runners_of_variants
from kiln.device.link import link
from kiln.errors import KilnError


def script(folder: Path, text: str) -> Path:
    path = folder / "program"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def start(program: Path, *arguments: str, timeout: float = 10, **files: dict[str, Path]) -> runners.Completed:
    return LocalRunner("here").run(
        program, arguments, send=files.get("send", {}), fetch=files.get("fetch", {}), timeout=timeout
    )


def test_files_go_and_come_back(tmp_path: Path) -> None:
    given, back = tmp_path / "given", tmp_path / "back"
    given.write_text("seven\n")
    program = script(tmp_path, 'cat in.txt > out.txt; echo "$1"; echo bad >&2; exit 3\n')
    fetch = {"out.txt": back, "never.txt": tmp_path / "never"}
    done = start(program, "a b", send={"in.txt": given}, fetch=fetch)
    assert (done.status, done.stdout, done.stderr) == (3, "a b\n", "bad\n")
    assert back.read_text() == "seven\n" and not (tmp_path / "never").exists()


def test_the_limit_ends_what_the_program_started_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = script(tmp_path, f"(sleep 1.5; touch {mark}) &\nwait\n")
    with pytest.raises(KilnError, match=r"here: program was still running after its limit of 0\.3 s"):
        start(program, timeout=0.3)
    time.sleep(1.7)
    assert not mark.exists()


def test_a_signal_is_named(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"killed by SIGILL \(an instruction this CPU lacks\): last words"):
        start(script(tmp_path, "echo last words >&2; kill -ILL $$\n"))


def test_a_fault_of_the_emulator_is_told_apart_from_one_of_the_program(tmp_path: Path) -> None:
    said = "program: translate.c:213: decode_save_opc: Assertion `ctx->insn_start != NULL' failed."
    (tmp_path / "said").write_text(said)
    emulator = script(tmp_path, f"cat {tmp_path}/said >&2; kill -ABRT $$\n")
    net = tmp_path / "net"
    net.touch()
    runner = LocalRunner("qemu-riscv64 -cpu rv64", [str(emulator), "-cpu", "rv64"])
    with pytest.raises(KilnError) as caught:
        runner.run(net, [], send={}, fetch={}, timeout=10)
    assert str(caught.value) == (
        "qemu-riscv64 -cpu rv64: a fault of the emulator itself, not of net; a newer version of it may have "
        f"none: {said}"
    )


def test_a_program_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match="cannot start"):
        start(tmp_path / "absent")


def with_emulator(command: str | None, **more: object) -> Target:
    target = load_target("aarch64")
    emulator = None
    if command is not None and target.emulator is not None:
        emulator = target.emulator.model_copy(update={"command": command})
    return target.model_copy(update={"emulator": emulator, **more})


def test_a_missing_emulator_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(KilnError, match=r"'qemu-nowhere' is not installed.*apt-get install qemu-user"):
        qemu_user.open_runner(with_emulator("qemu-nowhere"))


@pytest.mark.parametrize("name", ["riscv64", "cortex_m4"])
def test_an_emulator_that_is_too_old_is_named_with_its_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of systems and of machines without one."""
    target = load_target(name)
    assert target.emulator is not None
    emulator = target.emulator.model_copy(update={"command": "program", "since": "9.1"})
    monkeypatch.setenv("PATH", str(tmp_path))
    script(tmp_path, "echo QEMU emulator version 9.0.2\n")
    with pytest.raises(
        KilnError, match=rf"'{name}': program is version 9\.0\.2, and 9\.1 or later is needed"
    ):
        runners.runner_for(target.model_copy(update={"emulator": emulator}))


def test_a_missing_c_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.delenv("QEMU_LD_PREFIX", raising=False)
    target = with_emulator("sh", triple="aarch64-unknown-nowhere-gnu")
    with pytest.raises(KilnError, match="apt-get install libc6-arm64-cross"):
        qemu_user.open_runner(target)


def test_no_way_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(KilnError, match=r"target 'aarch64' cannot run here.*names no emulator"):
        runners.runner_for(with_emulator(None))


def test_wine_runs_the_variants_that_this_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    avx512 = {flag for _, level in LEVELS for flag in level}
    monkeypatch.setattr(host_cpu, "machine", lambda: "x86_64")
    monkeypatch.setattr(host_cpu, "read_flags", lambda: frozenset(avx512))
    wine = LocalRunner("wine")
    names = ["v3", "v3_vnni", "v4", "v4_vnni"]
    found = dict(runners_of_variants(load_target("windows_x86_64"), names, wine))
    assert found["v3"] is found["v4"] is wine
    lacks = "this CPU lacks {}, and there is no emulator of one that has it"
    assert found["v3_vnni"] == lacks.format("avx_vnni") and found["v4_vnni"] == lacks.format("avx512_vnni")


@pytest.mark.parametrize(
    ("triple", "name"),
    [
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
        ("armv7a-unknown-linux-gnueabihf", "arm-linux-gnueabihf"),
        ("x86_64-linux-musl", "x86_64-linux-musl"),
    ],
)
def test_sysroot_name(triple: str, name: str) -> None:
    assert packages.sysroot_name(triple) == name


def test_no_program_stays_behind_when_the_stage_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = script(tmp_path, f"sleep 1.5\ntouch {mark}\n")
    code = (
        "import sys; from pathlib import Path; from kiln.device.check.runners.local import LocalRunner\n"
        "LocalRunner('here').run(Path(sys.argv[1]), [], send={}, fetch={}, timeout=60)\n"
    )
    package = str(Path(runners.__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": package, "TMPDIR": str(tmp_path)}
    stage = subprocess.Popen([sys.executable, "-c", code, str(program)], env=environment)
    time.sleep(1)
    stage.kill()
    stage.wait()
    time.sleep(2)
    assert not mark.exists()


@pytest.mark.parametrize("moment", ["link", "execute"])
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def linked(command: list[str], _: str) -> None:
        Path(command[command.index("-o") + 1]).touch()

    if moment == "link":
        monkeypatch.setattr("kiln.toolchain.run", linked)
        monkeypatch.setattr("os.replace", full)
        with pytest.raises(KilnError, match="cannot write: No space left on device"):
            link(load_target("x86_64"), [], [], tmp_path / "work" / "p")
        assert list((tmp_path / "work").iterdir()) == []
    else:
        monkeypatch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(KilnError, match="cannot run the test program: No space left on device"):
            execute(BundleProgram(Bundle(tmp_path, "m"), tmp_path / "p", LocalRunner("here")), [], [])
