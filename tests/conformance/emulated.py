"""Kernels of another processor, called from Python: a program in QEMU runs them on memory that both share."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kiln.config import Target
from kiln.device.check.host_cpu import obstacle
from kiln.device.check.runners.local import emulator_of
from kiln.device.check.runners.qemu_user import sysroot
from kiln.device.link import link, link_flags
from kiln.lower.steps import Steps
from kiln.parent import end_with_parent

from .launched_kernels import LaunchedKernels
from .lowered import Memory, loaded

# A request is the number of a kernel and, for each word of its arguments, whether it is an address, and its
# value, which is then an offset in the shared memory. Further words than a kernel has parameters do no harm
# in any calling convention of these processors. The answer is one byte.
_PROGRAM = """
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {{ WORDS = {words} }};
typedef void (*Kernel)({types});
{prototypes}
static const Kernel kernels[] = {{ {table} }};

static int read_all(char *to, size_t bytes) {{
    while (bytes) {{
        const ssize_t count = read(0, to, bytes);
        if (count <= 0) return 0;
        to += count;
        bytes -= (size_t)count;
    }}
    return 1;
}}

int main(int argc, char **argv) {{
    if (argc != 3) return 2;
    char *const base = mmap(0, strtoul(argv[2], 0, 10), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
    int64_t request[1 + 2 * WORDS];
    if (base == MAP_FAILED) return 3;
    while (read_all((char *)request, sizeof request)) {{
        intptr_t a[WORDS];
        for (int i = 0; i < WORDS; i++) {{
            const intptr_t value = (intptr_t)request[2 + 2 * i];
            a[i] = request[1 + 2 * i] ? (intptr_t)base + value : value;
        }}
        kernels[request[0]]({arguments});
        if (write(1, "", 1) != 1) return 4;
    }}
    return 0;
}}
"""
_SHARED = 1 << 28  # bytes of address space; pages that nothing touches cost no memory


@contextlib.contextmanager
def opened(target: Target, path: Path, lowered: Iterable[Steps], folder: Path) -> Iterator[Any]:
    """The kernels of `lowered`, whose object is `path`: in this process, or in QEMU where need be.

    Kernels for a GPU run on this processor (kiln_on_cpu), whatever the target's CPU is.
    """
    if target.cuda is not None:
        yield LaunchedKernels(path)
        return
    if obstacle(target) is None:
        yield loaded(path)
        return
    lowered = list(lowered)
    words = {name: 0 for steps in lowered for name in steps.functions}
    words |= {
        step.kernel: len(step.args) + 2 for steps in lowered for step in steps.steps if step.kernel in words
    }
    library = Emulated(target, path, words, folder)
    try:
        yield library
    finally:
        library.close()


def memory_of(library: Any) -> Callable[[int, int], Memory]:
    """The function that makes the memory of a tensor for the kernels of `library`.

    On a GPU all tensors are in the arena, also inputs and outputs: kernels read and write 16 bytes at once.
    """
    if isinstance(library, LaunchedKernels):
        return lambda size, _: Memory(size, 64)
    return library.fresh() if isinstance(library, Emulated) else Memory


class EndedError(Exception):
    """The program ended in a kernel: by a signal, which the message names, or by an exit status."""


class Emulated:
    """The kernels of an object of `target`, in a program that QEMU runs; a kernel is an attribute.

    `kernels`: the number of parameters of each. After a crash, the next `fresh` starts the program again.
    """

    def __init__(self, target: Target, path: Path, kernels: Mapping[str, int], folder: Path) -> None:
        self._numbers = {name: number for number, name in enumerate(sorted(kernels))}
        self._words = max(kernels.values())
        source = folder / "calls.c"
        source.write_text(
            _PROGRAM.format(
                words=self._words,
                types=", ".join(["intptr_t"] * self._words),
                prototypes="\n".join(f"void {name}(void);" for name in self._numbers),
                table=", ".join(f"(Kernel){name}" for name in self._numbers),
                arguments=", ".join(f"a[{index}]" for index in range(self._words)),
            )
        )
        # As Bundle.link_program has them: for other flags zig makes its library of functions again.
        flags = ["-Os", "-g", *link_flags(target, "none")]
        program = link(target, [source], flags, folder / "program" / path.stem, libraries=[path])
        emulator, command = emulator_of(target)
        self._command = [command, *emulator.args, *sysroot(target), str(program)]
        self._environment = {**os.environ, **emulator.env}
        self._file = os.memfd_create("kernels")
        os.truncate(self._file, _SHARED)
        self._shared = np.frombuffer(mmap.mmap(self._file, _SHARED), "uint8")
        self._used = 0
        self._process: subprocess.Popen[bytes] | None = None

    def fresh(self) -> Callable[[int, int], Memory]:
        """Free all shared memory; return a function that makes a Memory of a size and an alignment there."""
        self._used = 0
        return lambda size, align: Memory(size, align, self._room)

    def _room(self, size: int) -> npt.NDArray[Any]:
        start = self._used
        self._used = -(-(start + size) // 64) * 64
        if self._used > _SHARED:
            raise MemoryError(f"{self._used} bytes, and both programs share {_SHARED}")
        return self._shared[start : start + size]

    def __getattr__(self, name: str) -> Callable[..., None]:
        try:
            number = self.__dict__["_numbers"][name]
        except KeyError:
            raise AttributeError(name) from None
        return lambda *arguments: self._call(number, arguments)

    def _call(self, number: int, arguments: tuple[Any, ...]) -> None:
        request = np.zeros(1 + 2 * self._words, "int64")
        request[0] = number
        base = self._shared.ctypes.data
        for index, argument in enumerate(arguments):
            is_address = isinstance(argument, ctypes.c_void_p)
            request[1 + 2 * index] = is_address
            request[2 + 2 * index] = argument.value - base if is_address else argument.value
        if self._process is None:
            self._process = subprocess.Popen(
                [*self._command, str(self._file), str(_SHARED)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self._file],
                env=self._environment, preexec_fn=end_with_parent, bufsize=0,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request.tobytes())
            answered = process.stdout.read(1)
        except BrokenPipeError:
            answered = b""
        if not answered:
            self._process = None
            process.stdin.close()
            process.stdout.close()
            status = process.wait()
            raise EndedError(signal.Signals(-status).name if status < 0 else f"exit status {status}")

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        os.close(self._file)
