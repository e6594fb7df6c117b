"""Both forms of a command line, and the questions that need no build."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line import arguments, entry
from kiln.command_line.answer import AnswerPart, CommandAnswer, Reply
from kiln.command_line.arguments import parse
from kiln.command_line.checked_output import READER_HAS_ENDED
from kiln.errors import KilnError
from kiln.scons.options import ALIASES, COMMANDS, OPTIONS, help_text

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("build net.onnx --target aarch64", "target=aarch64 model=net.onnx bundle"),
        ("build a.onnx b.tflite --target=aarch64,armv7", "target=aarch64,armv7 model=a.onnx,b.tflite bundle"),
        ("build --model resnet --target host -j 2 -n -q -k", "target=host model=resnet bundle -j2 -n -s -k"),
        ("run resnet target=host", "model=resnet target=host run"),
        ("test resnet --device pi4 --byoc none", "model=resnet byoc=none device=pi4 test"),
        (
            "size resnet --target host --cache none",
            "target=host model=resnet cache=none size",
        ),
        ("flash --program firmware.elf --device m4", "device=m4 program=firmware.elf flash"),
        # SCons's own form is not changed, except that -q is quiet in it, too.
        ("target=aarch64 model=resnet -q", "target=aarch64 model=resnet -s"),
        ("target=aarch64 model=resnet", "target=aarch64 model=resnet"),
        ("test target=aarch64 model=resnet -j2", "test target=aarch64 model=resnet -j2"),
        ("bundle size target=aarch64 model=resnet", "bundle size target=aarch64 model=resnet"),
        ("-c target=aarch64 model=resnet", "-c target=aarch64 model=resnet"),
        ("devices", "devices"),
        ("", "-h"),
        ("help", "-h"),
    ],
)
def test_words(given: str, words: str) -> None:
    assert list(parse(given.split()).words) == words.split()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("buidl net.onnx", "unknown command 'buidl'; did you mean 'build'?"),
        (
            "build net.onnx --tarket x",
            "unknown option '--tarket'; did you mean '--target'? (kiln build -h lists the arguments)",
        ),
        ("build net.onnx -j two", "argument -j/--jobs: 'two', allowed: a whole number of 1 or more"),
        ("build net.onnx -j0", "argument -j/--jobs: '0', allowed: a whole number of 1 or more"),
        ("target=host model=net.onnx -jtwo", "option -j: 'two', allowed: a whole number of 1 or more"),
        ("target=host model=net.onnx --jobs 1.5", "option -j: '1.5', allowed: a whole number of 1 or more"),
        ("sign folder --key k --release x", "argument --release: 'x', allowed: a whole number"),
        ("run a --model b", "the model is given twice: 'a' and --model b"),
        ("list", "the following arguments are required: kind"),
        ("list nets", "kind: 'nets'; did you mean 'targets'? known: targets, "),
    ],
)
def test_wrong_arguments(given: str, message: str) -> None:
    with pytest.raises(KilnError) as raised:
        parse(given.split())
    assert str(raised.value).startswith(message)


def test_questions(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in (
        ("targets", "host"),
        ("models", "resnet"),
        ("devices", "local"),
        ("backends", "onednn"),
    ):
        assert command_line.main(["list", kind, "--json"]) == 0
        entries = json.loads(capsys.readouterr().out)["results"][0]["data"]["entries"]
        assert name in [entry["name"] for entry in entries]
        assert all(entry["description"] for entry in entries)
        assert command_line.main(["list", kind]) == 0
        assert f"\n{name} " in "\n" + capsys.readouterr().out
    assert command_line.main(["lsit"]) == 2
    assert capsys.readouterr().err.startswith("kiln: error: unknown command 'lsit'; did you mean 'list'?")
    for words in ("list models", "compare net.onnx", "verify bundle --key k", "report a.html b.html"):
        assert parse([*words.split(), "--quiet"]).question.quiet  # type: ignore[union-attr]


def test_quiet_commands_print_their_answer_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(question: Namespace) -> Reply:
        print("on the way")
        return Reply(AnswerPart(goal=question.command), lambda: print("the answer"))

    monkeypatch.setattr(command_line, "_QUESTIONS", {"list": ask})
    for words, printed, message in (
        ([], "on the way\nthe answer\n", ""),
        (["-q"], "the answer\n", ""),
        (["--json"], None, "on the way\n"),
        (["--json", "--quiet"], None, ""),
    ):
        assert command_line.main(["list", "models", *words]) == 0
        output = capsys.readouterr()
        assert output.err == message
        if printed is None:
            assert json.loads(output.out)["status"] == 0
        else:
            assert output.out == printed


def test_a_backend_of_the_users_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "mine.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["list", "backends"]) == 2
    assert "mine.py: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KilnError("net.onnx: wrong"), "kiln: error: net.onnx: wrong"),
        (PermissionError(13, "Permission denied", "/out.npz"), "kiln: error: /out.npz: Permission denied"),
        (OSError(28, "No space left on device"), "kiln: error: No space left on device"),
        (KeyboardInterrupt(), "kiln: interrupted"),
        (MemoryError(), "kiln: error: kiln evaluate of resnet: out of memory (a fault of Kiln; "),
        (
            ZeroDivisionError("1 / 0"),
            "kiln: error: kiln evaluate of resnet: ZeroDivisionError: 1 / 0 (a fault",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_is_one_line(
    error: BaseException, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Namespace) -> int:
        raise error

    monkeypatch.setitem(command_line._QUESTIONS, "evaluate", fail)  # type: ignore[index]
    assert command_line.main(["evaluate", "resnet", "--data", "x.npz"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(line) and printed.count("\n") == 1


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, str(Path(__file__).parents[3] / "build_tools/command.py"), "list", "models"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (READER_HAS_ENDED, b"")


@pytest.mark.parametrize(
    ("redirections", "status", "printed"),
    [
        ("<&- >&-", 0, ""),  # files that the command opens do not become its output
        ("--json >/dev/full", 2, "kiln: error: stdout: cannot write: No space left on device\n"),
    ],
)
def test_an_output_that_takes_nothing(redirections: str, status: int, printed: str) -> None:
    command = f"exec '{sys.executable}' build_tools/command.py list models {redirections}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, printed)


@pytest.mark.parametrize(
    "words",
    [
        "evaluate resnet --data x.npz --outputs build/y.npz",
        "compare resnet",
        "quantise net.onnx --out build/y.onnx",
    ],
)
def test_results_that_cannot_be_written(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is built for a result that has no place: `build` is a file."""
    monkeypatch.chdir(tmp_path)
    for name in ("x.npz", "net.onnx", "build"):
        Path(name).touch()
    assert command_line.main(words.split()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("kiln: error: ") and "build" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "profile" in script
    assert "precision" in script
    assert "cortex_m4" in script
    assert any(files in script for files in ("_compgen_files", ":_files", "__fish_complete_path"))
    assert f"{'function ' if shell == 'fish' else ''}_kiln_words" in script


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "build net.onnx --tagret host",
            "unknown option '--tagret'; did you mean '--target'? (kiln build -h",
        ),
        (
            "compare net.onnx --inptus x.npz",
            "unknown option '--inptus'; did you mean '--inputs'? (kiln compare",
        ),
        ("list models more", "unexpected argument 'more' (kiln list -h lists the arguments)"),
        (
            "build a.onnx --target host test",
            "unexpected argument 'test'; several goals: kiln target=… model=…",
        ),
        ("list target", "kind: 'target'; did you mean 'targets'? known: targets, models,"),
        ("completion nu", "shell: 'nu'; known: bash, zsh,"),
        (
            "schema tarjet",
            "unknown schema 'tarjet'; did you mean 'target'? known: result, target, model, device",
        ),
        (
            "size a.onnx -t x86_64",
            "unknown option '-t'; did you mean '--target', '--together' or '--tra",
        ),
        ("evaluate a.onnx -O x", "unknown option '-O'; did you mean '--outputs'? (kiln evaluate -h"),
        ("size a.onnx -z", "unknown option '-z' (kiln size -h"),
        ("--versoin", "unknown option '--versoin'; did you mean '--version'? (kiln -h"),
        ("target=host model=a.onnx --quite", "unknown option '--quite'; did you mean '--quiet'?"),
        ("target=host model=a.onnx --precision fp16", "unknown option '--precision'; write precision=VALUE"),
        ("test -x", "unknown option '-x'"),
        ("-t x86_64 model=a.onnx", "option '-t' has no effect: leave it out; target=NAME or --target NAME"),
        ("target=host model=a.onnx --touc", "option '--touc' has no effect: leave it out"),
        ("target=host model=a.onnx --tree=x", "`x' is not a valid --tree option type, try: all, derived"),
        ("target=host model=a.onnx --max-drift x", "option --max-drift: invalid integer value: 'x'"),
        ("target=host model=a.onnx --site-dir=x", "option '--site-dir': kiln reads its own SConstruct"),
        ("target=host model=a.onnx --srcdir=x", "option '--srcdir': kiln reads its own SConstruct"),
        ("target=host model=a.onnx -C x", "option '-C': kiln builds in the folder in which it is started"),
        ("target=host model=a.onnx -l4", "option '-l' has no effect: leave it out"),
        ("target=host model=a.onnx -f SConstruct", "option '-f': kiln reads its own SConstruct; for your"),
        ("target=host model=a.onnx --file=x", "option '--file': kiln reads its own SConstruct; for your"),
    ],
)
def test_unknown_arguments_are_named_with_the_nearest(words: str, line: str) -> None:
    with pytest.raises(KilnError, match=re.escape(line)):
        parse(words.split())


def test_a_wrong_option_in_the_variable_of_scons_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCONSFLAGS", "-j2 --site-dir=x")
    with pytest.raises(KilnError, match=r"^SCONSFLAGS in the environment: option '--site-dir'"):
        parse(["target=host", "model=a.onnx"])


def test_words_in_any_order() -> None:
    """Models may stand before, between and after options; what SCons knows reaches it as it is."""
    for words in ("size a.onnx b.onnx --target host -n", "size --target host -n a.onnx b.onnx"):
        assert list(parse(words.split()).words) == ["target=host", "model=a.onnx,b.onnx", "size", "-n"]
    assert "model=a.onnx,b.onnx" in parse(["size", "a.onnx", "--target", "host", "b.onnx"]).words
    words = ["target=host", "model=a.onnx", "-j2", "--keep-going", "--cache-disable", "-Q"]
    assert list(parse(words).words) == words


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["help", "size"])
    assert capsys.readouterr().out.startswith("usage: kiln size ")
    assert list(parse(["help"]).words) == ["-h"]


def test_interrupted_before_the_command_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while modules are imported, which takes a second or two."""
    late = ModuleType("late")

    def interrupt(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(late, "__getattr__", interrupt, raising=False)
    monkeypatch.setitem(sys.modules, "kiln.command_line.__main__", late)
    assert entry.main() == 2
    assert capsys.readouterr() == ("", "kiln: interrupted\n")
    monkeypatch.setattr(sys, "argv", ["kiln", "test", "resnet", "--json"])
    assert entry.main() == 2
    out, err = capsys.readouterr()
    assert (err, CommandAnswer.model_validate_json(out).command) == ("", "test")
    assert json.loads(out)["error"]["code"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported(tmp_path: Path, number: int) -> None:
    """From the first line of the program on: before there is a command, and while one is imported."""
    start = f"""
import os, runpy, sys
class Late:
    def find_spec(self, name, *_):
        if name == NAME:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Late())
runpy.run_path({str(ROOT / "build_tools" / "command.py")!r}, run_name="__main__")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools")}
    for name in ("kiln.errors", "kiln.command_line.answer", "SCons.Script"):
        command = [sys.executable, "-c", start.replace("NAME", repr(name)), "target=host", "model=resnet"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "kiln: interrupted\n"), name


def test_interrupted_while_the_build_is_planned(tmp_path: Path) -> None:
    """Ctrl-C while SCons reads SConstruct."""
    program = (
        "import sys; from SCons.Script import Main\n"
        "def interrupt(*given): raise KeyboardInterrupt\n"
        "Main._SConstruct_exists = interrupt\n"
        "Main._load_all_site_scons_dirs = interrupt\n"
        "from kiln.command_line.entry import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "target=host", "model=resnet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "kiln: interrupted\n")


def test_the_help_lists_every_command() -> None:
    text = help_text()
    listed = set(re.findall(r"^  (\w+)  ", text, re.MULTILINE))
    assert {*ALIASES, *COMMANDS, *OPTIONS} <= listed
    parsers = arguments._add_commands(arguments.Parser(prog="kiln")).choices
    assert set(parsers) == {*COMMANDS, *arguments._GOAL_OF_VERB}
