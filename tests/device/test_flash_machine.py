"""Flashing a whole AArch64 machine through ssh, with the failures that can happen on the way.

The machine is QEMU's, its system Debian's (see emulated/). One machine serves all tests here, each of which
has a folder of its own on it.
"""

from __future__ import annotations

import json
import math
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kiln.config import load_target
from kiln.device.check.runners.remote import remote_runner
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import Answer, open_transport
from kiln.errors import KilnError

from . import tiny
from .emulated.cable import Cable
from .emulated.machine import Machine
from .flashing import BuiltBundle, DeviceStages, build, write_manifest, yaml_of

pytestmark = pytest.mark.heavy

PULLS = 20


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    emulated = Machine(tmp_path_factory.mktemp("machine"))
    yield emulated
    emulated.stop()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuiltBundle, BuiltBundle]:
    """Two bundles that differ in one weight and all that follows from it."""
    folder, target = tmp_path_factory.mktemp("bundles"), load_target("aarch64")
    return build(folder / "a", target), build(folder / "b", target, (0.5, -2.0, 3.5))


def board(
    machine: Machine, folder: Path, place: str, config: Path | None = None, **keys: Any
) -> DeviceStages:
    """The machine as a device whose bundles are in `place`; `keys` are further ones of the transport."""
    how = {"kind": "ssh", "host": "board", "config": str(config or machine.ssh_config), "timeout": 10, **keys}
    path = yaml_of(folder / "board.yaml", place, "aarch64", **how)
    return DeviceStages(folder, path)


def in_use(machine: Machine, place: str) -> str | None:
    """The id of the bundle that a program there finds, whose files must all be whole; None for no bundle."""
    script = """cd "$1/tiny/current" 2>/dev/null || { echo nothing; exit; }
    sha256sum -c SHA256SUMS >/tmp/sums 2>&1 || { cat /tmp/sums; exit 1; }
    cut -c67- SHA256SUMS; cat installed.json"""
    printed = machine.ssh(script, place)
    if printed == "nothing\n":
        return None
    names, _, text = printed.partition("{")
    installed = json.loads("{" + text)
    assert {file["name"] for file in installed["files"]} <= set(names.splitlines())
    return str(installed["id"])


def test_flash_and_back(machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path) -> None:
    """Flash, update and roll back as users with three login shells, two of which quote unlike sh."""
    (one, two), folder = bundles, "/data/kiln it's ! $HOME"
    for shell in ("tcsh", "fish"):
        assert machine.ssh('grep "^$1:" /etc/passwd', shell).endswith(f"/{shell}\n")
    first = board(machine, tmp_path, folder, user="tcsh").flashed(one)
    assert first["changed"] and first["moved_bytes"] > one.bytes()
    assert (first["device"]["cpu"], first["device"]["host"]) == ("cortex-a72", "kiln-board")
    assert in_use(machine, folder) == one.id

    desk = board(machine, tmp_path, folder)
    again = desk.flashed(one)
    assert (again["changed"], again["moved_bytes"], again["version"]) == (False, 0, first["version"])

    third = board(machine, tmp_path, folder, user="fish").flashed(two)
    kept = sum(path.stat().st_size for path in (two.bundle / "include").iterdir())
    assert third["changed"] and third["moved_bytes"] <= first["moved_bytes"] - kept
    assert third["previous"] == first["version"] and in_use(machine, folder) == two.id

    desk = board(machine, tmp_path, folder)
    printed = desk.installed("status", "--bundle", str(one.bundle)).stdout
    assert "whole, checked by SHA-256" in printed and "differs in golden/" in printed
    back = desk.installed("rollback")
    assert (back.returncode, back.stderr) == (0, "") and first["version"] in back.stdout
    assert in_use(machine, folder) == one.id
    assert "the same" in desk.installed("status", "--bundle", str(one.bundle)).stdout


def test_results_say_where_they_come_from(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    desk = board(machine, tmp_path, "/data/tests it's $(touch /tmp/pwned)")
    stdout, stderr = desk.start("device-test", *desk.flags(bundles[0])).communicate(timeout=120)
    assert stderr == "" and "device 'board', kiln-board: cortex-a72 ×2" in stdout
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["device"]["device"] == "board" and results["device"]["kernel"].startswith("Linux 6.")
    assert machine.ssh("ls /tmp/pwned 2>&1 || true").endswith("No such file or directory\n")


def test_the_cable_is_pulled(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    cable = Cable(machine.port)
    desk = board(machine, tmp_path, "/data/pulled", machine.via(cable.port))
    desk.flashed(bundles[0])
    cable.carried = 0
    desk.flashed(bundles[1])
    total, draw = cable.carried, random.Random(6)
    ids, after, old = [built.id for built in bundles], in_use(machine, "/data/pulled"), 0
    for _ in range(3 * PULLS):
        if cable.pulls == PULLS:
            break
        before, following = after, bundles[1 - ids.index(str(after))]
        # Files that arrived before an earlier pull are not sent again: then all bytes are those of commands.
        cable.carried, cable.pulled_at = 0, int(math.exp(draw.uniform(math.log(3000), math.log(total))))
        done = desk.flash(following)
        cable.pulled_at = None
        after = in_use(machine, "/data/pulled")
        assert after in (before, following.id)
        old += after == before
        assert done.returncode == 0 or (done.returncode == 2 and done.stderr.count("\n") == 1), done.stderr
        assert done.returncode == 2 or after == following.id
    cable.close()
    print(f"pulled {cable.pulls} times; {old} times the old bundle was in use afterwards")
    assert cable.pulls == PULLS and old > 0
    desk = board(machine, tmp_path, "/data/pulled")
    assert desk.flashed(bundles[0])["version"] and in_use(machine, "/data/pulled") == ids[0]
    left = machine.ssh('ls -A "$1" "$1/.kiln"', "/data/pulled").split()
    assert {"incoming", "runs", "lock"} & set(left) == set()


def test_commands_beside_each_other(machine: Machine, tmp_path: Path) -> None:
    """The machine's dropbear kills a command that begins while another one of its connection ends."""
    answers: list[Answer] = []
    transport = open_transport(load_device(board(machine, tmp_path, "/data/beside").device))

    def work(pause: float) -> None:
        for number in range(40):
            answers.append(transport.run(["sh", "-c", 'sleep "$1"; echo done', "sh", f"0.0{number % 7}"]))
            time.sleep(pause)

    try:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, (0.05, 0.2)))
    finally:
        transport.close()
    assert answers == [Answer(0, b"done\n", "")] * 80


def test_the_connection_stalls(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    """A connection that stays open in the middle of a copy, but passes nothing on, is given up."""
    cable, folder = Cable(machine.port), "/data/stalled"
    desk = board(machine, tmp_path, folder, machine.via(cable.port), timeout=4)
    cable.pulled_at, cable.stalls = bundles[0].bytes() // 2, True
    error = desk.refused(bundles[0])
    assert cable.pulls == 1 and "the connection was lost" in error
    cable.close()
    assert in_use(machine, folder) is None


def test_nobody_answers(machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path) -> None:
    """A machine that accepts a connection and never answers, as a hung one, is reported."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = machine.via(silent.getsockname()[1])
        error = board(machine, tmp_path, "/data/silent", config, timeout=1).refused(bundles[0])
    assert "; try: ssh -F " in error and ("timed out" in error or "no connection within 3 s" in error)


def test_threads_are_those_that_the_machine_has(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    assert bundles[0].target.cores == 4  # the machine has two
    (tmp_path / "plan.json").write_text(json.dumps(tiny.plan_for(bundles[0].target)))
    desk = board(machine, tmp_path, "/data/bench")
    stdout, stderr = desk.start(
        "device-bench", *desk.flags(bundles[0]), "--plan", str(tmp_path / "plan.json")
    ).communicate(timeout=120)
    assert stderr == "" and "kiln-board: cortex-a72 ×2" in stdout
    assert [run["threads"] for run in json.loads((tmp_path / "out.json").read_text())["runs"]] == [1, 2]


def test_what_hangs_there_is_stopped(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    device = load_device(board(machine, tmp_path, "/data/hangs").device)
    transport = open_transport(device)
    with pytest.raises(KilnError, match="no answer within 1 s; it hangs, is too slow or is no longer"):
        transport.run(["sleep", "60"], timeout=1)
    assert transport.run(["echo", "still there"]).text == "still there\n"
    transport.close()
    program = tmp_path / "endless"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    with (
        remote_runner(device, bundles[0].target, "tiny") as runner,
        pytest.raises(KilnError, match=r"endless was still running after its limit of 1 s and was stopped"),
    ):
        runner.run(program, [], send={}, fetch={}, timeout=1)


def test_no_space(machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path) -> None:
    large = build(tmp_path / "large", bundles[0].target)
    (large.bundle / "report.html").write_bytes(random.Random(1).randbytes(1 << 20))
    write_manifest(large.bundle, large.target)
    desk = board(machine, tmp_path, "/small/kiln")
    assert re.search(
        r"no space: \d,\d{3},\d{3} bytes needed in /small/kiln, 1,048,576 free", desk.refused(large)
    )
    # df counts bytes; a file system may be full in another way, and in the middle of a copy.
    desk = board(machine, tmp_path, "/inodes/kiln")
    desk.flashed(bundles[0])
    free = "mount -o remount,nr_inodes=$(($(df -i /inodes | awk 'END {print $3}') + 4)) /inodes"
    machine.ssh(free)
    assert "No space left on device" in desk.refused(bundles[1])
    assert in_use(machine, "/inodes/kiln") == bundles[0].id
    machine.ssh("mount -o remount,nr_inodes=1000 /inodes")
    desk.flashed(bundles[1])


def test_what_does_not_fit(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    desk = board(machine, tmp_path, "/data/fit")
    for name, message in (
        ("x86_64", "it is aarch64, and target 'x86_64' is x86_64"),
        ("armv7", "it is aarch64, and target 'armv7' is armv7"),
        ("aarch64_a76", "its CPU lacks asimddp"),
    ):
        other = BuiltBundle(tmp_path, bundles[0].bundle, load_target(name))
        (tmp_path / "target.json").write_text(other.target.model_dump_json())
        assert message in desk.refused(other)
    hungry = build(tmp_path / "hungry", bundles[0].target)
    write_manifest(hungry.bundle, hungry.target, buckets=[{"arena_bytes": 1 << 30}])
    assert "memory: 1,073,741,836 bytes needed" in desk.refused(hungry)
    assert machine.ssh("ls -d /data/fit 2>&1 || true").endswith("No such file or directory\n")
    assert "Read-only file system" in board(machine, tmp_path, "/sealed/kiln").refused(bundles[0])


def test_who_is_at_the_other_end(
    machine: Machine, bundles: tuple[BuiltBundle, BuiltBundle], tmp_path: Path
) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(machine.folder / "no")], check=True
    )
    other = " ".join((machine.folder / "no.pub").read_text().split()[:2])
    for config, message in (
        (machine.via(machine.port, other), "its host key is another than the known one"),
        (machine.via(machine.port, ""), "its host key is not known here; connect once by hand"),
        (
            machine.via(machine.port, key="no"),
            "it refuses this key or user; let it in with: ssh-copy-id -F ",
        ),
        (machine.via(1), "Connection refused; try: ssh -F "),
    ):
        assert message in board(machine, tmp_path, "/data/door", config).refused(bundles[0])
    assert machine.ssh("ls -d /data/door 2>&1 || true").endswith("No such file or directory\n")
