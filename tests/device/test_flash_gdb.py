"""The gdb transport on a Cortex-M4 of qemu-system-arm, and against a server that has flash memory."""

from __future__ import annotations

import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kiln import toolchain
from kiln.config import load_target
from kiln.device.known import load_device
from kiln.device.rsp import Region, Rsp, crc32
from kiln.device.runners.remote import remote_runner
from kiln.errors import KilnError

from .flashing import yaml_of

BARE = Path(__file__).resolve().parent / "bare"
TARGET = load_target("armv7")  # no microcontroller's target is needed to load a program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    folder = tmp_path_factory.mktemp("bare")

    def make(mode: int) -> Path:
        out = folder / f"bare{mode}.elf"
        if not out.exists():
            words = ["-target", "thumb-freestanding-eabi", "-mcpu=cortex_m4", "-O1", "-g0", "-ffreestanding"]
            words += ["-nostdlib", "-Wl,-e,reset", f"-Wl,-T,{BARE / 'link.ld'}", f"-DMODE={mode}"]
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
    end, tcp = time.monotonic() + 30, Path("/proc/net/tcp")
    # To connect would be a first debugger's visit. The state 0A is that of a listening socket.
    while not any(f":{port:04X} " in line and " 0A " in line for line in tcp.read_text().splitlines()):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    yield yaml_of(tmp_path / "m4.yaml", "/none", kind="gdb", address=f"127.0.0.1:{port}")
    process.kill()
    process.wait()


def test_a_program_is_loaded_and_has_its_files(
    board: Path, program: Callable[[int], Path], tmp_path: Path
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


def test_what_goes_wrong_is_one_line(board: Path, program: Callable[[int], Path], tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"abc")
    with remote_runner(load_device(board), TARGET, "bare") as runner:

        def run(mode: int) -> int:
            send = {"inputs.bin": given}
            return runner.run(program(mode), [], send=send, fetch={}, timeout=2).status

        assert run(1) == 99  # its own handler of faults
        with pytest.raises(KilnError, match="still running after 2 s, was stopped"):
            run(2)
        assert run(3) == 44  # a file of this machine is none of the program's
        with pytest.raises(KilnError, match="is no program for it"):
            runner.run(given, [], send={}, fetch={}, timeout=2)


def test_nobody_answers(tmp_path: Path) -> None:
    device = load_device(yaml_of(tmp_path / "m4.yaml", "/none", kind="gdb", address="127.0.0.1:1"))
    with pytest.raises(KilnError, match=r"no gdb server answers: Connection refused; start it"):
        remote_runner(device, TARGET, "bare").__enter__()


class Probe(socketserver.StreamRequestHandler):
    """A gdb server of a chip with flash memory, as OpenOCD and its like behave; `memory` is what it holds."""

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
        name, _, rest = body.partition(b":")
        if name == b"qSupported":
            return b"PacketSize=200;qXfer:memory-map:read+"
        if name == b"qXfer":
            text = b'<memory-map><memory type="flash" start="0x1000" length="0x8000">\n'
            text += b'<property name="blocksize">0x400</property></memory></memory-map>'
            at, count = (int(word, 16) for word in rest.rpartition(b":")[2].split(b","))
            return (b"l" if at + count >= len(text) else b"m") + text[at : at + count]
        if name == b"vFlashErase":
            at, count = (int(word, 16) for word in rest.split(b","))
            assert at % 0x400 == 0 and count % 0x400 == 0
            self.memory[at : at + count] = b"\xff" * count
        elif name == b"vFlashWrite":
            at_text, _, content = rest.partition(b":")
            at = int(at_text, 16)
            assert self.memory[at : at + len(content)] == b"\xff" * len(content)
            self.memory[at : at + len(content)] = content
        elif name == b"qCRC":
            at, count = (int(word, 16) for word in rest.split(b","))
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
        assert region == Region(0x1000, 0x8000, 0x400)
        content = bytes(range(256)) * 9  # holds all characters that packets escape
        rsp.erase_and_write(region, 0x1500, content)
        assert bytes(Probe.memory[0x1500 : 0x1500 + len(content)]) == content
        assert rsp.crc(0x1500, len(content)) == crc32(content)
        assert rsp.crc(0x1500, len(content) - 1) != crc32(content)
        rsp.close()
        server.shutdown()
    assert b"vFlashErase:" in Probe.asked and b"vFlashDone" in Probe.asked


def test_the_checksum_is_gdbs() -> None:
    # CRC-32/MPEG-2, whose check value is published.
    assert crc32(b"123456789") == 0x0376E6E7
