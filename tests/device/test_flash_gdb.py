"""The gdb transport on a Cortex-M4 of qemu-system-arm, and against a server that has flash memory."""

from __future__ import annotations

import json
import random
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting
from kiln import toolchain
from kiln.config import load_target
from kiln.device.bare import parts
from kiln.device.check.runners import shown_time
from kiln.device.check.runners.remote import remote_runner
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import open_transport
from kiln.device.deploy.transports.gdb import GdbTransport
from kiln.device.link import link, link_flags
from kiln.device.microcontroller.image import Image
from kiln.device.microcontroller.rsp import MemoryMapRegion, Rsp, crc32
from kiln.emit.headers import dlpack_h, kiln_h
from kiln.emit.source import emit, runtime_sources
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan

from . import tiny
from .flashing import BuiltBundle, DeviceStages, build, yaml_of

BARE = Path(__file__).resolve().parent / "bare"
TARGET = load_target("armv7")  # no microcontroller's target is needed to load a program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("bare")

    def make(mode: int, cpu: str = "cortex_m4") -> Path:
        out = folder / f"bare{mode}{cpu}.elf"
        if not out.exists():
            words = ["-target", "thumb-freestanding-eabi", f"-mcpu={cpu}", "-O1", "-g0", "-ffreestanding"]
            words += [
                "-nostdlib",
                "-rtlib=none",
                "-Wl,-e,reset",
                f"-Wl,-T,{BARE / 'link.ld'}",
                f"-DMODE={mode}",
            ]
            command = [sys.executable, "-m", "ziglang", "cc", *words, str(BARE / "main.c"), "-o", str(out)]
            toolchain.run(command, "bare program")
        return out

    return make


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Path]:
    """The YAML of a Cortex-M4 with nothing in its memory."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-M", "mps2-an386", "-nodefaults", "-display", "none", "-S", "-gdb", f"tcp:127.0.0.1:{port}"]
    words += ["-semihosting-config", "enable=on,target=gdb"]
    process = subprocess.Popen(["qemu-system-arm", *words], stderr=subprocess.DEVNULL)
    waiting.for_port(port, process)
    yield yaml_of(tmp_path / "m4.yaml", "/none", kind="gdb", address=f"127.0.0.1:{port}")
    process.kill()
    process.wait()


def test_a_program_is_loaded_and_has_its_files(
    board: Path, program: Callable[..., Path], tmp_path: Path
) -> None:
    given, made = tmp_path / "given", tmp_path / "made"
    given.write_bytes(bytes(range(256)) * 17)  # more than one packet holds
    with remote_runner(load_device(board), TARGET, "bare") as runner:
        for _ in range(2):  # the second run on the same connection
            done = runner.run(
                program(0), [], send={"inputs.bin": given}, fetch={"outputs.bin": made}, timeout=30
            )
            assert (done.status, done.stdout) == (len(given.read_bytes()) & 0xFF, "doubled\n")
            assert made.read_bytes() == bytes(2 * byte & 0xFF for byte in given.read_bytes())
            made.unlink()


_ECHO = """
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    for (int i = 0; i < count; i++)
        fprintf(i % 2 ? stderr : stdout, "%d: %s\\n", i, words[i]);
    return 40 + count;
}
"""


@pytest.mark.heavy
def test_a_program_that_kiln_links_gets_its_arguments(board: Path, tmp_path: Path) -> None:
    """Kiln's start-up code reads the arguments from a file, since a gdb server passes none."""
    target, source = load_target("cortex_m4"), tmp_path / "echo.c"
    source.write_text(_ECHO)
    made = parts(target, tmp_path)
    flags = [*link_flags(target, "none", None), *made.flags]
    linked = link(target, [source, *made.sources], flags, tmp_path / "work" / "echo", include=made.include)
    with remote_runner(load_device(board), target, "echo") as runner:
        for words in (["inputs.bin", "7"], []):  # the second run on the same connection
            done = runner.run(linked, words, send={}, fetch={}, timeout=30)
            assert done.status == 41 + len(words)
            assert done.stdout == f"0: {linked.name}\n" + ("2: 7\n" if words else "")
            assert done.stderr == ("1: inputs.bin\n" if words else "")
        assert shown_time(1e6, runner.unit) == "not timed"


def test_what_goes_wrong_is_one_line(board: Path, program: Callable[..., Path], tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"abc")
    with remote_runner(load_device(board), TARGET, "bare") as runner:

        def run(mode: int, timeout: float = 60) -> int:
            send = {"inputs.bin": given}
            return runner.run(program(mode), [], send=send, fetch={}, timeout=timeout).status

        assert run(1) == 99  # its own handler of faults
        with pytest.raises(KilnError, match="still running after 2 s, was stopped"):
            run(2, timeout=2)
        assert run(3) == 44  # a file of this machine is none of the program's
        with pytest.raises(KilnError, match="is not a program for this device"):
            runner.run(given, [], send={}, fetch={}, timeout=2)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltBundle:
    """The tiny bundle, whose golden vectors are the same for every target."""
    return build(tmp_path_factory.mktemp("built"), tiny.base_target())


def firmware(folder: Path, kernels: str = tiny.KERNELS) -> Path:
    """The tiny model with Kiln's runtime in a program without an operating system."""
    folder.mkdir()
    for name, content in emit(parse_plan({**tiny.plan(), "threads": "none"}), tiny.W.tobytes()).items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for header in (kiln_h(), dlpack_h()):
        shutil.copy(header, folder)
    (folder / "kernels.c").write_text(kernels)
    sources = [*runtime_sources("none", "freestanding"), *folder.glob("*.[cS]"), BARE / "vectors.c"]
    words = [
        "-target",
        "thumb-freestanding-eabihf",
        "-mcpu=cortex_m4+vfp4d16sp",
        "-Os",  # with the next two as bundles are linked: zig makes its libraries again for other flags
        "-g",
        "-fno-sanitize=undefined",
        "-ffreestanding",
    ]
    words += ["-nostdlib", "-Wl,-e,reset", "-Wl,--gc-sections", f"-Wl,-T,{BARE / 'link.ld'}", f"-I{folder}"]
    out = folder / "firmware.elf"
    command = [sys.executable, "-m", "ziglang", "cc", *words, *map(str, sources), "-o", str(out)]
    toolchain.run(command, "firmware")
    return out


@pytest.mark.heavy
def test_a_model_is_flashed_and_computes_its_golden_vectors(
    board: Path, built: BuiltBundle, tmp_path: Path
) -> None:
    desk, right = DeviceStages(tmp_path, board), firmware(tmp_path / "right")
    wrong = firmware(tmp_path / "wrong", tiny.KERNELS.replace("+ 1.0f", "+ 1.5f"))

    def program(goal: str, path: Path) -> tuple[int, str, str, dict[str, Any]]:
        out = tmp_path / "out.json"
        flags = ["--goal", goal, "--program", str(path), "--bundle", str(built.bundle), "--out", str(out)]
        done = desk.run("device-program", *flags)
        return done.returncode, done.stdout, done.stderr, json.loads(out.read_text()) if out.exists() else {}

    status, printed, _, first = program("flash", right)
    assert status == 0 and "cortex-m4" in printed and 0 < first["written_bytes"] == first["bytes"]
    assert program("flash", right)[3]["written_bytes"] == 0
    status, printed, _, tested = program("test", right)
    assert (
        status == 0 and printed.count(": ok") == 2 and tested["vectors"] == 2 and tested["cpu"] == "cortex-m4"
    )
    assert program("status", right)[3]["differing_bytes"] == 0
    status, printed, _, other = program("status", wrong)
    assert status == 0 and "differs, first in the block at 0x" in printed
    assert 0 < other["differing_bytes"] < other["bytes"]
    status, printed, stderr, _ = program("test", wrong)
    assert status == 1 and "FAILED" in printed and "test failed: firmware.elf on device 'm4'" in stderr
    assert program("flash", right)[3]["written_bytes"] == other["differing_bytes"]
    status, _, stderr, _ = program("run", right)  # no inputs: its own status for that
    assert status == 2 and stderr.count("\n") == 1 and "failed with status 2" in stderr


def test_programs_that_do_not_fit(board: Path, program: Callable[..., Path], tmp_path: Path) -> None:
    desk, newer = DeviceStages(tmp_path, board), program(0, "cortex_m33")
    (tmp_path / "cut.elf").write_bytes(newer.read_bytes()[:300])
    for path, message in (
        (newer, "its core is a cortex-m4, and bare0cortex_m33.elf is for Armv8-M; nothing was changed there"),
        (BARE / "main.c", "cannot be read as an ELF file"),
        (tmp_path / "cut.elf", "cannot be read as an ELF file"),
        (Path(sys.executable), "a program for Cortex-M expected"),
        (tmp_path / "absent", "No such file"),
    ):
        done = desk.run(
            "device-program", "--goal", "flash", "--program", str(path), "--out", str(tmp_path / "o")
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr, done.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    device = load_device(yaml_of(tmp_path / "m4.yaml", "/none", kind="gdb", address="127.0.0.1:1"))
    with pytest.raises(KilnError, match=r"no gdb server answers: Connection refused; start it"):
        remote_runner(device, TARGET, "bare").__enter__()


class Probe(socketserver.StreamRequestHandler):
    """A gdb server of a chip with flash memory that behaves as OpenOCD does; `memory`: the chip's content."""

    memory = bytearray(b"\x00" * 65536)
    asked: list[bytes]

    def handle(self) -> None:
        while True:
            byte = self.rfile.read(1)
            if not byte:
                return
            if byte != b"$":
                continue
            body = b""
            while (byte := self.rfile.read(1)) != b"#":
                body += bytes([self.rfile.read(1)[0] ^ 0x20]) if byte == b"}" else byte
            self.rfile.read(2)
            answer = self.answer(body)
            self.wfile.write(b"+$" + answer + b"#%02x" % (sum(answer) & 0xFF))

    def answer(self, body: bytes) -> bytes:
        self.asked.append(body[:12])
        name, _, arguments = body.partition(b":")
        if name == b"qSupported":
            return b"PacketSize=200;qXfer:memory-map:read+"
        if name == b"qXfer":
            text = b'<memory-map><memory type="flash" start="0x1000" length="0x8000">\n'
            text += b'<property name="blocksize">0x400</property></memory></memory-map>'
            at, count = (int(word, 16) for word in arguments.rpartition(b":")[2].split(b","))
            return (b"l" if at + count >= len(text) else b"m") + text[at : at + count]
        if name == b"vFlashErase":
            at, count = (int(word, 16) for word in arguments.split(b","))
            assert at % 0x400 == 0 and count % 0x400 == 0
            self.memory[at : at + count] = b"\xff" * count
        elif name == b"vFlashWrite":
            at_text, _, content = arguments.partition(b":")
            at = int(at_text, 16)
            assert self.memory[at : at + len(content)] == b"\xff" * len(content)
            self.memory[at : at + len(content)] = content
        elif body[:1] == b"m":
            at, count = (int(word, 16) for word in body[1:].split(b","))
            return bytes(self.memory[at : at + count]).hex().encode() if at < 65536 else b"E01"
        elif name == b"qCRC":
            at, count = (int(word, 16) for word in arguments.split(b","))
            return b"C%x" % crc32(bytes(self.memory[at : at + count]))
        elif name != b"vFlashDone":
            return b""
        return b"OK"


def test_flash_memory_is_erased_in_blocks_and_checked_by_the_server() -> None:
    Probe.asked = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Probe) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rsp = Rsp(("127.0.0.1", server.server_address[1]), "chip", 5)
        (region,) = rsp.flash_regions()
        assert region == MemoryMapRegion(0x1000, 0x8000, 0x400)
        content = bytes(range(256)) * 9  # holds all characters that packets escape
        rsp.erase_and_write(region, 0x1500, content)
        assert bytes(Probe.memory[0x1500 : 0x1500 + len(content)]) == content
        assert rsp.crc(0x1500, len(content)) == crc32(content)
        assert rsp.crc(0x1500, len(content) - 1) != crc32(content)
        rsp.close()
        server.shutdown()
    assert b"vFlashErase:" in Probe.asked and b"vFlashDone" in Probe.asked


def test_blocks_of_flash_keep_what_is_not_the_programs(tmp_path: Path) -> None:
    Probe.asked, Probe.memory = [], bytearray(random.Random(1).randbytes(65536))
    before = bytes(Probe.memory)
    # Two parts that share a block, one that ends in another, and one that is there already.
    parts = [(0x1000, b"a" * 1500), (0x15DC + 8, b"b" * 700), (0x3100, before[0x3100:0x3300])]
    image = Image(tmp_path, "0" * 64, parts, None, None)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Probe) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        device = load_device(yaml_of(tmp_path / "chip.yaml", "/none", kind="gdb", address=address))
        transport = open_transport(device)
        assert isinstance(transport, GdbTransport)
        assert sum(size for _, size in transport.differing(image)) == 2200
        assert transport.load(image) == 3 * 0x400
        assert transport.differing(image) == [] and transport.load(image) == 0
        transport.close()
        server.shutdown()
    wanted = bytearray(before)
    for at, content in parts:
        wanted[at : at + len(content)] = content
    assert bytes(Probe.memory) == bytes(wanted)
    assert [ask for ask in Probe.asked if ask.startswith(b"vFlashErase")] == [b"vFlashErase:"] * 3


def test_the_checksum_is_gdbs() -> None:
    # CRC-32/MPEG-2, whose check value is published.
    assert crc32(b"123456789") == 0x0376E6E7
