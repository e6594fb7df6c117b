"""Words that have several forms: options, `~`, help, paths with commas; and output that is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line.arguments import parse
from kiln.command_line.checked_output import READER_HAS_ENDED
from kiln.command_line.own_process import kiln_program
from kiln.command_line.words import normalised
from kiln.errors import KilnError
from kiln.paths import listed_names
from kiln.scons.storage import open_storage

BUILD = ["build", "net.onnx", "--target", "aarch64"]


@pytest.mark.parametrize("options", [["-q"], ["--quiet"], ["-n"], ["-k"], ["-j2"], ["--quiet", "-n"]])
def test_general_options_before_the_command(options: list[str]) -> None:
    assert parse([*options, *BUILD]) == parse([*BUILD, *options])
    assert parse(["--json", *options, *BUILD]) == parse([*BUILD, *options, "--json"])


def test_help_before_and_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["-h", "sign"], ["help", "sign"], ["sign", "-h"]):
        with pytest.raises(SystemExit):
            parse(words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2] and "--release" in texts[0]


@pytest.mark.parametrize(
    "words",
    [
        ["-j2", "target=aarch64", "model=net.onnx", "test"],
        ["--debug=time", "size", "target=aarch64", "model=net.onnx"],  # SCons's own options stay in front
        ["-n"],
        ["target=aarch64", "-n", "build"],
    ],
)
def test_other_words_keep_their_order(words: list[str]) -> None:
    assert normalised(words, ["build", "size", "test"]) == words


def test_home_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few shells replace `~` within a word; one in the middle of a name is a character like any other."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = str(tmp_path)
    words = [
        "cache=~/kiln",
        "--out=~/x.onnx",
        "model=~/a.onnx,~/b.onnx",
        "~",
        "a~/b",
        "~root/x",
        "x=~y",
        "./~/z",
    ]
    assert normalised(words, []) == [
        f"cache={home}/kiln", f"--out={home}/x.onnx", f"model={home}/a.onnx,{home}/b.onnx", home,
        "a~/b", "~root/x", "x=~y", "./~/z",
    ]  # fmt: skip
    open_storage("~/kiln/cache")  # of the variable KILN_CACHE
    assert (tmp_path / "kiln/cache").is_dir()


def test_paths_with_commas(tmp_path: Path) -> None:
    file = tmp_path / "a,b" / "net, too.onnx"
    file.parent.mkdir()
    file.touch()
    assert listed_names(str(file)) == [str(file)]
    assert listed_names(f"{file},c") == [str(tmp_path / "a"), "b/net", "too.onnx", "c"]
    assert listed_names("a, b,,c") == ["a", "b", "c"] and len(listed_names("model," * 3000)) == 3000


def test_a_list_without_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["list", "operators"]) == 0
    assert capsys.readouterr().out.startswith("no operators of your own: there are none in ./operators")
    assert command_line.main(["list", "operators", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["data"]["entries"] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [["--version"], ["build", "-h"], ["list", "targets"], ["list", "targets", "--json"]],
    ids=" ".join,
)
def test_lines_that_cannot_be_written(words: list[str], tmp_path: Path) -> None:
    program = kiln_program(words)
    program[2] = program[2].replace("command_line.__main__ import", "command_line.entry import")
    assert "entry" in program[2]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.stderr == "kiln: error: stdout: cannot write: No space left on device\n"
    assert done.returncode == 2


def test_a_reader_that_ends(tmp_path: Path) -> None:
    """As `kiln build -h | head -1`: no message, neither of Kiln nor of Python."""
    program = kiln_program(["build", "-h"])
    program[2] = program[2].replace("command_line.__main__ import", "command_line.entry import")
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        program, cwd=tmp_path, stdout=written, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(written)
    assert done.stderr == "" and done.returncode == READER_HAS_ENDED


@pytest.mark.parametrize("quiet", ["-q", "--quiet"])
def test_quiet_is_an_option_of_every_command(quiet: str) -> None:
    """Of those that read their arguments without a parser, too; a build has one word for it."""
    for words in ("schema target", "completion bash", "report a b", "list models"):
        plain, silent = parse(words.split()).question, parse([*words.split(), quiet, "--json"]).question
        assert plain is not None and silent is not None and plain.command == silent.command
        assert {**vars(plain), "quiet": True} == {**vars(silent), "quiet": True}
    for words in ("target=host model=a.onnx size", "size a.onnx --target host", "target=host model=a.onnx"):
        assert "-s" in parse([*words.split(), quiet]).words
    with pytest.raises(KilnError, match="unknown schema 'nope'"):
        parse(["schema", "nope", quiet])


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_the_version_is_kilns(option: str, tmp_path: Path) -> None:
    program = kiln_program(["--version", option])
    program[2] = program[2].replace("command_line.__main__ import", "command_line.entry import")
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split()[0], len(done.stdout.splitlines())) == ("kiln", 1)


@pytest.mark.parametrize("words", [["list", "models"], ["target=host", "model=resnet"], ["-h"]])
def test_a_current_folder_that_was_removed(words: list[str], tmp_path: Path) -> None:
    program = kiln_program(words)
    program[2] = program[2].replace("command_line.__main__ import", "command_line.entry import")
    remove = f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv({program[0]!r}, "
    done = subprocess.run(
        [sys.executable, "-c", f"{remove}{program!r})"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    cause = "No such file or directory: it was removed or renamed; change to another one"
    assert (done.returncode, done.stderr) == (2, f"kiln: error: the current folder: {cause}\n")
