"""Lines that could not be written are an error, which SCons alone would ignore."""

from __future__ import annotations

import contextlib
import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest
from kiln.command_line.checked_output import READER_HAS_ENDED, CheckedOutput, checked
from kiln.command_line.own_process import kiln_program


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_of_the_command(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            kiln_program(["-h"]), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (
        2,
        "kiln: error: stdout: cannot write: No space left on device\n",
    )


class Failing(io.StringIO):
    """A stream whose next write fails with this number."""

    number = 0

    def write(self, text: str) -> int:
        if self.number:
            raise OSError(self.number, "reason")
        return super().write(text)


@pytest.mark.parametrize(("number", "lost"), [(0, None), (errno.ENOSPC, "reason"), (errno.EPIPE, None)])
def test_what_is_lost(number: int, lost: str | None) -> None:
    stream = Failing()
    output = CheckedOutput(stream)
    print("first", file=output)
    stream.number = number
    try:
        print("second", file=output)
    except OSError as error:
        assert error.errno == number
    assert output.lost() == lost
    assert stream.getvalue() == ("first\n" if number else "first\nsecond\n")
    assert CheckedOutput(sys.__stdout__ or stream).isatty() in (False, True)


@pytest.mark.parametrize("raises", [False, True])
def test_help_that_is_lost_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raises: bool
) -> None:
    """As of `./kiln bench -h > /dev/full`, with an argparse that raises the error and one that does not."""

    def main() -> int:
        with contextlib.suppress(*([] if raises else [OSError])):
            print("usage")
        raise SystemExit

    for number, status, said in (
        (0, 0, ""),
        (errno.EPIPE, READER_HAS_ENDED, ""),
        (errno.ENOSPC, 2, "kiln: error: stdout: cannot write: reason\n"),
    ):
        stream = Failing()
        stream.number = number
        monkeypatch.setattr(sys, "stdout", stream)
        assert checked(main) == status
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("own", "status"), [(0, READER_HAS_ENDED), (1, READER_HAS_ENDED), (2, 2)], ids=["done", "rich", "failed"]
)
def test_a_reader_that_has_ended(monkeypatch: pytest.MonkeyPatch, own: int, status: int) -> None:
    """As of `kiln compare net.onnx | head -1`, whose tables end the command with status 1."""

    def main() -> int:
        with contextlib.suppress(OSError):
            print("a row")
        sys.exit(own)

    stream = Failing()
    stream.number = errno.EPIPE
    monkeypatch.setattr(sys, "stdout", stream)
    assert checked(main) == status


def test_other_errors_are_not_those_of_the_output() -> None:
    def main() -> int:
        raise OSError(errno.ENOENT, "no such file")

    with pytest.raises(OSError, match="no such file"):
        checked(main)
