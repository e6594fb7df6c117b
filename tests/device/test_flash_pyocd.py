"""The pyocd transport, with a stand-in for pyOCD whose gdb server is QEMU's: a Cortex-M4 without flash."""

from __future__ import annotations

import itertools
import json
import shutil
import stat
import sys
from pathlib import Path

import pytest
from kiln import toolchain
from kiln.config import load_target
from kiln.device.check.runners.remote import remote_runner
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import open_transport, pyocd
from kiln.device.microcontroller.image import read_image
from kiln.errors import KilnError

from .flashing import yaml_of

BARE = Path(__file__).resolve().parent / "bare"
STAND_IN = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
open({log!r}, "w").write(json.dumps(words))
if "lost" in words:
    print("0000123 E Error: No target device found [cli]")
    sys.exit(1)
port = words[words.index("--port") + 1]
time.sleep(0.3)  # pyOCD connects to the core before it listens
machine = ["-M", "mps2-an386", "-nodefaults", "-display", "none", "-S", "-gdb", f"tcp:127.0.0.1:{{port}}"]
os.execvp("qemu-system-arm", ["qemu-system-arm", *machine, "-semihosting-config", "enable=on,target=gdb"])
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in on PATH; the file gets the words that it was started with."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    log = tmp_path / "words.json"
    program = tmp_path / "bin" / "pyocd"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{'/usr/bin:/bin'}")
    monkeypatch.setattr(pyocd.importlib.util, "find_spec", lambda name: None)
    return log


def bare_program(folder: Path) -> Path:
    """A program that doubles each byte of inputs.bin."""
    out = folder / "bare.elf"
    flags = ["-target", "thumb-freestanding-eabi", "-mcpu=cortex_m4", "-O1", "-g0", "-ffreestanding"]
    flags += [
        "-nostdlib",
        "-rtlib=none",
        "-Wl,-e,reset",
        f"-Wl,-T,{BARE / 'link.ld'}",
        "-DMODE=0",
        str(BARE / "main.c"),
    ]
    toolchain.run([sys.executable, "-m", "ziglang", "cc", *flags, "-o", str(out)], "bare program")
    return out


def test_a_program_is_loaded_verified_and_run(words: Path, tmp_path: Path) -> None:
    pack = tmp_path / "chip.pack"
    pack.touch()
    path = yaml_of(
        tmp_path / "m4.yaml", "/none", kind="pyocd", chip="stm32f407vg", probe="0240", pack="chip.pack",
        frequency=4_000_000, connect="under-reset",
    )  # fmt: skip
    program, given, made = bare_program(tmp_path), tmp_path / "given", tmp_path / "made"
    given.write_bytes(bytes(range(256)))
    device = load_device(path)
    with remote_runner(device, load_target("armv7"), "bare") as runner:
        done = runner.run(program, [], send={"inputs.bin": given}, fetch={"outputs.bin": made}, timeout=30)
    assert done.stdout == "doubled\n"
    assert made.read_bytes() == bytes(2 * byte & 0xFF for byte in range(256))
    answers = json.loads(words.read_text())
    assert answers[0] == "gdbserver" and {"--no-wait", "--persist", "--semihosting"} <= set(answers)
    options = dict(itertools.pairwise(answers))
    assert options["--target"] == "stm32f407vg" and options["--probe"] == "0240"
    assert options["--pack"] == str(pack) and options["--frequency"] == "4000000"
    assert options["--connect"] == "under-reset" and "semihost_use_syscalls=true" in answers
    transport = open_transport(device)
    image = read_image(program)
    assert transport.differing(image) and transport.load(image) == image.size  # another server: memory is new
    assert transport.differing(image) == [] and transport.core() == "cortex-m4"
    server = transport._server._process
    transport.close()
    assert server.poll() is not None


def test_what_is_missing_or_wrong_is_one_line(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = load_device(yaml_of(tmp_path / "lost.yaml", "/none", kind="pyocd", probe="lost"))
    with pytest.raises(
        KilnError, match=r"device 'lost' \(pyocd lost\): pyOCD ended: .*No target device found"
    ):
        open_transport(lost)
    unpacked = load_device(yaml_of(tmp_path / "unpacked.yaml", "/none", kind="pyocd", pack="no.pack"))
    with pytest.raises(KilnError, match=r"device 'unpacked': transport.pack: .*/no.pack: no such file"):
        open_transport(unpacked)
    with pytest.raises(KilnError, match="one word expected, not beginning with '-'"):
        load_device(yaml_of(tmp_path / "option.yaml", "/none", kind="pyocd", chip="--script=a"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        KilnError, match=r"needs the package pyocd, which is not installed; .* pip install pyocd"
    ):
        open_transport(load_device(yaml_of(tmp_path / "m4.yaml", "/none", kind="pyocd")))
