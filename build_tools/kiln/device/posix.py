"""What every device with a POSIX shell does alike: files over the pipe, commands as text for its shell."""

from __future__ import annotations

import shlex
import string
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.device.deploy.transports import TIMEOUT, Answer
from kiln.errors import KilnError

# A login shell need not be a POSIX one: csh and fish read quotes, ! and line ends in ways of their own.
_WORD = frozenset(string.ascii_letters + string.digits + "+=:,./_-")
_PLAIN = _WORD | {" ", "'", "@"}
_SHORT = 1000  # characters
BYTES_PER_SECOND = 50_000  # what a file's time limit assumes of a slow line


def as_text(command: Sequence[str]) -> str:
    """The command as one text that any login shell (sh, csh, fish) turns into exactly these arguments.

    Raises ValueError for a character that no argument of a program can hold.
    """
    if any("\0" in word for word in command):
        raise ValueError("a null character in an argument")
    text = shlex.join(command)
    if set(text) <= _PLAIN and len(text) <= _SHORT:
        return text
    return f'exec sh -c \'eval "$(printf "{_octal(text)}")"\''


def as_text_and_input(command: Sequence[str], stdin: bytes | Path | None) -> tuple[str, bytes | Path | None]:
    """`as_text`; a long command is the first line of its own input, since servers and shells have limits.

    dropbear takes 9000 characters, adb of old devices 4096, csh 1024 a word.
    """
    text = as_text(command)
    if len(text) <= _SHORT or isinstance(stdin, Path):
        return text, stdin
    line = _octal(shlex.join(command)).encode() + b"\n"
    return 'exec sh -c \'IFS= read -r text; eval "$(printf "$text")"\'', line + (stdin or b"")


def _octal(text: str) -> str:
    """For printf: all that is not a plain letter or digit as an escape."""
    return "".join(chr(b) if chr(b) in _WORD else f"\\{b:03o}" for b in text.encode())


class PosixTransport(ABC):
    """send and fetch on top of run: by tar where there is one, else file by file through cat."""

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
            with tempfile.TemporaryDirectory(prefix="kiln-tar-") as folder:
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
    """A tar file of `files` (name in it → file here), without owners and dates."""
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as stream:
                tar.addfile(entry, stream)
