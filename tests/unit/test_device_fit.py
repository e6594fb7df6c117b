"""Which bundles a device can run, by what it says of itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kiln.config import Target, load_target
from kiln.device.facts import read_facts
from kiln.device.fit import obstacle
from kiln.device.transports import Answer

V8 = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
V7 = "Features\t: half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32"


class Device:
    """One that answers `lines` to the question what it is."""

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
    ],
)
def test_what_fits(said: list[str], target: str, told: str | None) -> None:
    wanted = load_target(target.partition(" ")[0])
    facts = read_facts(Device(*said), "/kiln")  # type: ignore[arg-type]
    why = obstacle(facts, static(wanted) if target.endswith(" static") else wanted)
    assert why is None if told is None else why is not None and why.startswith(told), why
