"""Common code for transports to devices with a POSIX shell: quoting of commands, and files over pipes."""

from __future__ import annotations

import shlex
import string
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.device.deploy.transports import TIMEOUT, Answer
from kiln.errors import KilnError
from kiln.scratch import scratch_folder

# The login shell may not be a POSIX shell: csh and fish treat quotes, ! and line ends differently.
_WORD = frozenset(string.ascii_letters + string.digits + "+=:,./_-")
_PLAIN = _WORD | {" ", "'", "@"}
_SHORT = 1000  # characters of a command that every server and shell accepts
BYTES_PER_SECOND = 50_000  # rate of a slow connection, assumed for the time limits of file transfers


def as_text(command: Sequence[str]) -> str:
    """The command as one text that any login shell (sh, csh, fish) parses into exactly these arguments.

    Raises ValueError for a null character, which no argument of a program can contain.
    """
    if any("\0" in word for word in command):
        raise ValueError("a null character in an argument")
    text = shlex.join(command)
    if set(text) <= _PLAIN and len(text) <= _SHORT:
        return text
    return f'exec sh -c \'eval "$(printf "{_octal(text)}")"\''


def as_text_and_input(command: Sequence[str], stdin: bytes | Path | None) -> tuple[str, bytes | Path | None]:
    """The command as text, and its standard input; a long command becomes the first line of its input.

    Servers and shells have limits: dropbear 9000 characters, adb of old devices 4096, csh 1024 per word.
    """
    text = as_text(command)
    if len(text) <= _SHORT or isinstance(stdin, Path):
        return text, stdin
    line = _octal(shlex.join(command)).encode() + b"\n"
    return 'exec sh -c \'IFS= read -r text; eval "$(printf "$text")"\'', line + (stdin or b"")


def _octal(text: str) -> str:
    """`text` for printf, with an octal escape for every byte outside of `_WORD`."""
    return "".join(chr(b) if chr(b) in _WORD else f"\\{b:03o}" for b in text.encode())


class PosixTransport(ABC):
    """A Transport that implements `send` and `fetch` with `run`.

    Several files are sent by tar where the device has it; otherwise each file goes through cat.
    """

    has_shell = True
    _tar: bool | None = None

    @property
    @abstractmethod
    def description(self) -> str:
        """See Transport.description."""

    @abstractmethod
    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """See Transport.run."""

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """See Transport.send."""
        limit = timeout + sum(source.stat().st_size for source in files.values()) / BYTES_PER_SECOND
        if len(files) > 1 and self._has_tar():
            with scratch_folder("tar") as folder:
                packed = Path(folder, "files.tar")
                _pack({path.lstrip("/"): source for path, source in files.items()}, packed)
                done = self.run(["tar", "-x", "-o", "-f", "-", "-C", "/"], stdin=packed, timeout=limit)
            if done.status:
                raise KilnError(f"{self.description}: cannot write files: {done.complaint}")
            return
        for path, source in files.items():
            done = self.run(["sh", "-c", 'cat > "$1"', "sh", path], stdin=source, timeout=limit)
            if done.status:
                raise KilnError(f"{self.description}: cannot write {path}: {done.complaint}")

    def _has_tar(self) -> bool:
        if self._tar is None:
            self._tar = self.run(["sh", "-c", "command -v tar >/dev/null"]).status == 0
        return self._tar

    def fetch(self, path: str, destination: Path, *, timeout: float = TIMEOUT) -> bool:
        """See Transport.fetch."""
        script = 'if [ -f "$1" ]; then exec cat "$1"; else exit 44; fi'
        done = self.run(["sh", "-c", script, "sh", path], timeout=timeout)
        if done.status == 44:
            return False
        if done.status:
            raise KilnError(f"{self.description}: cannot read {path}: {done.complaint}")
        destination.write_bytes(done.stdout)
        return True


def _pack(files: Mapping[str, Path], out: Path) -> None:
    """Write a tar file of `files` (name in the tar file → file here), without owners and dates."""
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as stream:
                tar.addfile(entry, stream)
