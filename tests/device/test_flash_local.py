"""Flashing a folder of this machine: what must hold on every device, tried where it is quick."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kiln.__main__ import main
from kiln.config import canonical_json
from kiln.device.check import bench
from kiln.device.deploy import script
from kiln.device.deploy.listing import listing
from kiln.device.deploy.registry import device_config, load_device
from kiln.device.deploy.transports.local import LocalTransport

from . import tiny
from .flashing import BuiltBundle, DeviceStages, Pair, build, in_use, write_manifest


def test_only_what_is_new_is_copied(desk: DeviceStages, bundles: Pair) -> None:
    (one, two), versions = bundles, desk.folder / "store/tiny/versions"
    first = desk.flashed(one)
    assert in_use(desk.folder) == one.id and first["moved_bytes"] > one.bytes()
    assert desk.flashed(one)["moved_bytes"] == 0
    second = desk.flashed(two)
    unchanged = sum(
        (two.bundle / "include" / name).stat().st_size
        for name in ("kiln.h", "kiln_image.h", "dlpack.h", "tiny.h")
    )
    assert 0 < second["moved_bytes"] <= first["moved_bytes"] - unchanged
    assert (in_use(desk.folder), second["previous"]) == (two.id, first["version"])
    # Back to the first: all of it is there still. New are the note about it and the program that tries it.
    third = desk.flashed(one)
    (program,) = (one.folder / "work").glob("shared_run_vectors-*")
    assert third["moved_bytes"] < program.stat().st_size + 8192 and in_use(desk.folder) == one.id
    assert sorted(path.name for path in versions.iterdir()) == sorted([second["version"], third["version"]])
    mode = stat.S_IMODE((versions / third["version"] / "manifest.json").stat().st_mode)
    assert mode == 0o444 and (versions / third["version"] / "manifest.json").stat().st_nlink > 1


@pytest.mark.heavy
def test_a_version_of_the_same_second_is_another(desk: DeviceStages, bundles: Pair) -> None:
    """A bundle that is flashed again while its earlier version is there, as twice within a second."""
    identity = desk.flashed(bundles[0])["version"].partition("-")[2]
    desk.flashed(bundles[1])
    for later in range(90):  # the version may get any of these names
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + later))
        (desk.folder / "store/tiny/versions" / f"{stamp}-{identity}").mkdir(exist_ok=True)
    assert desk.flashed(bundles[0])["version"].endswith(f"-{identity}-2")
    assert in_use(desk.folder) == bundles[0].id


@pytest.mark.heavy
def test_back_and_no_further(desk: DeviceStages, bundles: Pair) -> None:
    assert "no bundle of 'tiny' is installed there" in desk.installed("rollback").stderr
    desk.flashed(bundles[0])
    assert "no bundle of 'tiny' earlier than" in desk.installed("rollback").stderr
    desk.flashed(bundles[1])
    assert desk.installed("rollback").returncode == 0 and in_use(desk.folder) == bundles[0].id
    done = desk.installed("rollback")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and in_use(desk.folder) == bundles[0].id


@pytest.mark.heavy
def test_what_is_damaged_is_found_and_mended(desk: DeviceStages, bundles: Pair) -> None:
    desk.flashed(bundles[0])
    library = desk.folder / "store/tiny/current/lib/libtiny.a"
    library.chmod(0o644)
    library.write_bytes(library.read_bytes()[:-1] + b"!")
    assert "damaged: lib/libtiny.a; flash again" in desk.installed("status").stdout
    mended = desk.flashed(bundles[0])
    assert mended["changed"] and in_use(desk.folder) == bundles[0].id
    # A bundle that is damaged is not gone back to.
    desk.flashed(bundles[1])
    header = desk.folder / "store/tiny/versions" / mended["version"] / "include/tiny.h"
    header.unlink()
    done = desk.installed("rollback")
    assert done.returncode == 2 and "include/tiny.h is damaged" in done.stderr
    assert in_use(desk.folder) == bundles[1].id


def test_a_bundle_that_computes_wrongly_is_not_used(
    desk: DeviceStages, bundles: Pair, tmp_path: Path
) -> None:
    wrong = build(tmp_path / "wrong", bundles[0].target, kernels=tiny.KERNELS.replace("+ 1.0f", "+ 1.5f"))
    desk.flashed(bundles[0])
    done = desk.flash(wrong)
    assert done.returncode == 1 and done.stderr.startswith("kiln: test failed: tiny on")
    assert in_use(desk.folder) == bundles[0].id
    assert len(list((desk.folder / "store/tiny/versions").iterdir())) == 1


def test_what_is_flashed_is_what_is_tried(desk: DeviceStages, bundles: Pair, tmp_path: Path) -> None:
    """The static library is right, the shared one that programs there will load is not."""
    wrong = build(tmp_path / "wrong", bundles[0].target, kernels=tiny.KERNELS.replace("+ 1.0f", "+ 1.5f"))
    mixed = BuiltBundle(tmp_path, tmp_path / "tiny", bundles[0].target)
    shutil.copytree(bundles[1].bundle, mixed.bundle)
    shutil.copy(bundles[1].folder / "target.json", tmp_path)
    shutil.copy(wrong.bundle / "lib/libtiny.so", mixed.bundle / "lib")
    write_manifest(mixed.bundle, mixed.target)
    desk.flashed(bundles[0])
    done = desk.flash(mixed)
    assert done.returncode == 1 and done.stderr.startswith("kiln: test failed: tiny on")
    assert in_use(desk.folder) == bundles[0].id
    # A bundle for contents: run has no static library on the device at all.
    desk.device.write_text(desk.device.read_text().replace('"target"', '"contents": "run", "target"', 1))
    desk.flashed(bundles[1])
    current = desk.folder / "store/tiny/current"
    assert not list(current.rglob("*.a")) and (current / "lib/libtiny.so").is_file()


def test_a_changed_bundle_is_not_sent(desk: DeviceStages, bundles: Pair, tmp_path: Path) -> None:
    copy = BuiltBundle(tmp_path, tmp_path / "tiny", bundles[0].target)
    shutil.copytree(bundles[0].bundle, copy.bundle)
    shutil.copy(bundles[0].folder / "target.json", tmp_path)
    (copy.bundle / "include/tiny.h").write_text("")
    assert "include/tiny.h: not the file that manifest.json lists" in desk.refused(copy)
    assert not (tmp_path / "store/tiny").exists()


OFTEN = [
    pytest.param(name, 11, marks=pytest.mark.heavy) for name in ("links", "no symbolic links", "no mv -T")
]


@pytest.mark.parametrize(("links", "times"), [("links", 4), *OFTEN])
def test_killed_anywhere(desk: DeviceStages, bundles: Pair, links: str, times: int) -> None:
    path = shadowed(desk.folder, links)
    began = time.monotonic()
    assert desk.flash(bundles[0], PATH=path).returncode == 0
    seconds, draw = time.monotonic() - began, random.Random(links)
    ids, seen = [built.id for built in bundles], set()
    assert (desk.folder / "store/tiny/current").is_symlink() == (links == "links")
    for share in (0.01, *(draw.uniform(0.3, 1.2) for _ in range(times))):  # at first before it has begun
        before = in_use(desk.folder)
        following = bundles[1 - ids.index(str(before))]
        process = desk.start("device-flash", *desk.flags(following), PATH=path)
        time.sleep(share * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        after = in_use(desk.folder)
        assert after in (before, following.id)
        seen.add(after == before)
    assert True in seen
    assert desk.flash(bundles[0], PATH=path).returncode == 0 and in_use(desk.folder) == ids[0]


def shadowed(folder: Path, links: str) -> str:
    """A PATH whose ln or mv is that of a poorer system."""
    tools = folder / "tools"
    tools.mkdir()
    poorer = {
        "no symbolic links": ("ln", "echo no such thing here >&2; exit 1"),
        "no mv -T": ("mv", 'for w; do [ "$w" != -T ] || exit 1; done; exec /bin/mv "$@"'),
    }
    if links in poorer:
        name, text = poorer[links]
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


@pytest.mark.parametrize("times", [1, 9])
def test_what_arrives_damaged(desk: DeviceStages, bundles: Pair, times: int) -> None:
    desk.flashed(bundles[0])
    tools = desk.folder / "tools"
    tools.mkdir()
    count = desk.folder / "count"
    (tools / "tar").write_text(
        f"""#!/bin/sh
/bin/tar "$@" || exit
echo >>{count}
[ $(wc -l <{count}) -gt {times} ] || for f in {desk.folder}/store/.kiln/incoming/*/*; do echo >>"$f"; done
"""
    )
    (tools / "tar").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    if times == 1:
        done = desk.flash(bundles[1], PATH=path)
        assert (done.returncode, in_use(desk.folder)) == (0, bundles[1].id), done.stderr
    else:
        assert "arrived damaged, twice" in desk.refused(bundles[1], PATH=path)
        assert in_use(desk.folder) == bundles[0].id


@pytest.mark.heavy
def test_runs_and_steps_are_timed(
    desk: DeviceStages,
    bundles: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(tiny.plan_for(bundles[0].target)))
    given = ["--plan", str(tmp_path / "plan.json"), "--steps"]
    time_unit, rate_unit, _ = bench._UNITS["ns"]
    monkeypatch.setitem(bench._UNITS, "ns", (time_unit, rate_unit, 0.1))  # seconds of runs
    assert main(desk.words("device-bench", *desk.flags(bundles[0]), *given)) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "add+square" in stdout
    timed = json.loads((tmp_path / "out.json").read_text())
    assert timed["device"]["device"] == "board" and timed["device"]["cpu"]
    assert [step["label"] for step in timed["steps"]] == ["multiply", "add+square"]
    assert sum(step["share"] for step in timed["steps"]) == pytest.approx(1.0)
    assert timed["peak_gflops"] > 0.1 and not timed["emulated"]
    for row in timed["runs"]:
        assert 5 <= row["runs"] <= 2000 and 0 < row["least"] <= row["median"] <= row["nine_in_ten"]


def test_what_is_done_is_listed_and_nothing_else(
    desk: DeviceStages, bundles: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that really runs on the device stands in what -n prints."""
    ran: list[list[str]] = []
    really = LocalTransport.run

    def run(self: LocalTransport, command: Sequence[str], **how: Any) -> Any:
        ran.append(list(command))
        return really(self, command, **how)

    monkeypatch.setattr(LocalTransport, "run", run)
    monkeypatch.setattr("kiln.device.deploy.lock.BEAT", 0.05)
    config = desk.folder / "device.json"
    config.write_text(canonical_json(device_config(load_device(desk.device))))
    for goal, flags in (
        ("flash", ["device-flash", "--device", str(config), *desk.flags(bundles[0])]),
        ("flash", ["device-flash", "--device", str(config), *desk.flags(bundles[1])]),
        ("status", ["device-installed", "--device", str(config), "--goal", "status", "--model", "tiny"]),
        ("rollback", ["device-installed", "--device", str(config), "--goal", "rollback", "--model", "tiny"]),
    ):
        ran.clear()
        listed = listing(goal, load_device(desk.device), "tiny")
        assert main(flags) == 0
        scripts = {
            line.split()[2].strip("'()") for line in listed.splitlines() if line.startswith("  sh -c '(")
        }
        texts = {script.command(name)[2]: name for name in scripts}
        assert len(ran) > 4
        for words in ran:
            if words[:2] == ["sh", "-c"] and words[2] in texts:
                assert words[3] == texts[words[2]]
            else:
                assert plainly(words) in listed, (goal, words)


def plainly(words: Sequence[str]) -> str:
    """How a command that is no script of Kiln's stands in a listing."""
    if words[:2] != ["sh", "-c"]:
        return " ".join(words[:2] if words[0] == "rm" else words)
    if "command -v tar" in words[2]:
        return "sh -c 'command -v tar'"
    return "sh -c '… cat \"$1\" …'" if "exec cat" in words[2] else words[2]


def test_nothing_is_listed_and_done(desk: DeviceStages, bundles: Pair) -> None:
    stdout = desk.run("device-flash", *desk.flags(bundles[0]), "--list").stdout
    named = [line.split()[2].strip("'()") for line in stdout.splitlines() if line.startswith("  sh -c")]
    assert named[0] == "facts" and {"lock", "stage", "verify", "run", "switch", "unlock"} <= set(named)
    assert not (desk.folder / "store").exists()


def test_a_library_for_a_newer_glibc_is_told_before_anything_is_copied(
    desk: DeviceStages, bundles: Pair, tmp_path: Path
) -> None:
    """A library in the bundle, such as one of a package, may need a newer glibc than the target."""
    first, _ = bundles
    shutil.copytree(first.folder, tmp_path / "newer")
    built = BuiltBundle(tmp_path / "newer", tmp_path / "newer" / first.bundle.name, first.target)
    (tmp_path / "a.c").write_text("#include <string.h>\nunsigned long f(char *s) { return strlen(s); }\n")
    library = built.bundle / "lib/libmine.so"
    command = ["cc", "-shared", "-fPIC", str(tmp_path / "a.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    content = library.read_bytes()
    assert b"GLIBC_2.2.5\0" in content
    library.write_bytes(content.replace(b"GLIBC_2.2.5\0", b"GLIBC_2.999\0"))
    write_manifest(built.bundle, built.target)
    line = desk.refused(built)
    assert "its glibc is 2." in line and "lib/libmine.so needs 2.999 or later; nothing was changed" in line
    assert not list((desk.folder / "store").rglob("libmine.so"))
