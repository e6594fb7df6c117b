"""Bundles that a device can run, by its answer to the query of its processor and system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from kiln.config import Target, load_target
from kiln.device.deploy.facts import read_facts
from kiln.device.deploy.fit import files_obstacle, needed_glibc, obstacle
from kiln.device.deploy.transports import Answer
from kiln.errors import KilnError
from kiln.toolchain import link, oldest_cpu_command

V8 = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
V7 = "Features\t: half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32"


class Device:
    """A device that answers a query of its properties with `lines`."""

    description, has_shell = "device 'pi'", True

    def __init__(self, *lines: str) -> None:
        self._text = "\n".join(["home\t/root", "checksum\tsha256sum", *lines, ""])

    def run(self, command: Sequence[str], *, stdin: object = None, timeout: float = 0) -> Answer:
        return Answer(0, self._text.encode(), "")


def static(target: Target) -> Target:
    libc = target.libc.model_copy(update={"name": "musl", "version": None, "static": True})
    return target.model_copy(update={"libc": libc})


@pytest.mark.parametrize(
    ("said", "target", "told"),
    [
        (["machine\taarch64", "bits\t64", f"cpuinfo\t{V8}"], "aarch64", None),
        (["machine\taarch64", f"cpuinfo\t{V8}"], "aarch64_a76", "its CPU lacks asimddp"),
        (["machine\tarmv7l", "bits\t32", f"cpuinfo\t{V7}"], "armv7", None),
        (["machine\tarmv7l", "bits\t32", f"cpuinfo\t{V7}"], "aarch64", "it is armv7, and target 'aarch64'"),
        # A 64-bit kernel: with 32-bit programs on top of it, with 64-bit ones, and a program that needs none.
        (["machine\taarch64", "bits\t32", f"cpuinfo\t{V8}"], "armv7", None),
        (["machine\taarch64", "bits\t32", f"cpuinfo\t{V8}"], "aarch64", "it is armv7, and target 'aarch64'"),
        (["machine\taarch64", "bits\t64", f"cpuinfo\t{V8}"], "armv7", "it is aarch64, and target 'armv7'"),
        (["machine\taarch64", "bits\t64", f"cpuinfo\t{V8}"], "armv7 static", None),
        (["machine\tarmv7l", "bits\t32", "cpuinfo\tFeatures\t: half thumb vfp"], "armv7", "its CPU lacks"),
        (
            ["machine\taarch64", "libc\tmusl"],
            "aarch64",
            "its C library is musl, and target",
        ),
        (["machine\taarch64", "libc\tglibc 2.5"], "aarch64", "its glibc is 2.5, and target 'aarch64' needs"),
        (["machine\taarch64", "libc\tbionic 34"], "aarch64", "its C library is bionic, and target"),
        (["machine\taarch64", "libc\tbionic 34"], "android_arm64", None),
        (["machine\taarch64", "libc\tbionic 23"], "android_arm64", "its bionic is 23, and target"),
        (["machine\taarch64", "libc\tglibc 2.36"], "android_arm64", "its C library is glibc, and target"),
    ],
)
def test_what_fits(said: list[str], target: str, told: str | None) -> None:
    wanted = load_target(target.partition(" ")[0])
    facts = read_facts(Device(*said), "/kiln")  # type: ignore[arg-type]
    why = obstacle(facts, static(wanted) if target.endswith(" static") else wanted)
    assert why is None if told is None else why is not None and why.startswith(told), why


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that uses a function of glibc 2.17 and one of 2.2.5."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text(
        "#include <stdlib.h>\n#include <time.h>\n"
        'int now(struct timespec *at) { return clock_gettime(CLOCK_MONOTONIC, at) + atoi("1"); }\n'
    )
    made = folder / "libnow.so"
    target = load_target("x86_64")
    command = [*oldest_cpu_command(target), "-O2", "-shared", "-fPIC", str(folder / "a.c")]
    link(target, [*command, "-o", str(made)], "making a library")
    return made


def test_a_library_tells_which_glibc_it_needs(library: Path, tmp_path: Path) -> None:
    assert needed_glibc(library) == "2.17"
    (tmp_path / "text").write_bytes(b"\x7fEL")
    assert needed_glibc(tmp_path / "text") is None
    (tmp_path / "cut").write_bytes(library.read_bytes()[:40])
    with pytest.raises(KilnError, match="cut: cannot be read as an ELF file"):
        needed_glibc(tmp_path / "cut")


@pytest.mark.parametrize(
    ("libc", "told"),
    [
        ("glibc 2.12", "its glibc is 2.12, and lib/libnow.so needs 2.17 or later"),
        ("glibc 2.9", "its glibc is 2.9, and lib/libnow.so needs 2.17 or later"),
        ("glibc 2.17", None),
        ("glibc 2.41", None),
        ("musl", None),
        ("", None),
    ],
)
def test_a_device_without_the_glibc_of_a_library(library: Path, libc: str, told: str | None) -> None:
    answers = ["machine\tx86_64", *([f"libc\t{libc}"] if libc else [])]
    facts = read_facts(Device(*answers), "/kiln")  # type: ignore[arg-type]
    assert files_obstacle(facts, {"lib/libnow.so": library, "golden.bin": Path(__file__)}) == told
