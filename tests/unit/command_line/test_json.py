"""--json: one object of one schema on stdout for every command, also after every kind of error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, get_args

import fastjsonschema
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line import entry, own_process
from kiln.command_line.answer import AnswerPart, ErrorCode, error_of, schema
from kiln.command_line.arguments import parse
from kiln.command_line.result_keys import RESULT_KEYS
from kiln.errors import KilnError
from kiln.scons.options import ALIASES

# Keys that many goals have.
ABOUT = {"model", "target", "device", "name", "runner", "format"}
ROOT = Path(__file__).resolve().parents[3]
VALID = fastjsonschema.compile(json.loads(json.dumps(schema()).replace("2020-12/schema", "draft-07/schema")))


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the object on stdout, and stderr of a command."""
    status = command_line.main(words)
    out, err = capsys.readouterr()
    answer_object: dict[str, Any] = json.loads(out)
    VALID(answer_object)
    assert answer_object["status"] == status
    return status, answer_object, err


@pytest.mark.parametrize("form", ["--json list targets", "list targets --json"])
def test_a_question(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, content, err = answer(capsys, *form.split())
    assert (status, content["error"], err) == (0, None, "")
    assert "host" in [entry["name"] for entry in content["results"][0]["data"]["entries"]]


@pytest.mark.parametrize(
    "form", ["run net.onnx --json", "target=host model=a.onnx size --json", "devices --json"]
)
def test_every_form_of_a_goal_accepts_it(form: str) -> None:
    command = parse(form.split())
    assert command.json and "--json" not in command.words


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KilnError("net.onnx: wrong"), "rejected", "net.onnx: wrong"),
        (KilnError("unknown model 'a'; did you mean 'b'?"), "unknown-name", "unknown model 'a'; did"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (OSError(28, "No space left on device"), "system", "No space left on device"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "no-such-file", "/x: No such file"),
        (ZeroDivisionError("1 / 0"), "fault", "kiln evaluate of resnet: ZeroDivisionError: 1 / 0 (a fault"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors(
    error: BaseException,
    code: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Namespace) -> command_line.Reply:
        raise error

    monkeypatch.setitem(command_line._QUESTIONS, "evaluate", fail)  # type: ignore[arg-type]
    status, content, err = answer(capsys, "evaluate", "resnet", "--json")
    assert (status, content["command"], err) == (2, "evaluate", "")
    assert content["error"]["code"] == code and content["error"]["text"].startswith(text)


LINES = {
    "usage": [
        "option -j: '0', allowed: a whole number of 1 or more",
        "option 'precision': 'zz', allowed: fp32, tf32, bf16, fp16",
        "option 'byoc': none, auto, or names of backends with commas expected, got 'none'",
        "option 'together' is for the goal joint",
        "option 'cluster': 'zz': tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or local:N with N",
        "option 'cluster': workers exchange files through a cache: cache=FOLDER that they all see",
        "joint: at least two models expected: model=a,b",
        "traffic: no traffic file (.csv) is given",
        "compare: --min-snr is the limit of --float FILE.onnx, which is not given",
        "--from nothing: a URL that begins with http:// or https:// is expected",
    ],
    "unknown-name": [
        "option 'variants': 'zz' is not a variant of target 'armv7': base",
        "device 'any:zz': no device is for such a target or architecture; devices: local (host)",
    ],
    "system": [
        "option 'cache': 'ftp://x': [Errno -2] Name or service not known",
        "option 'cluster': no scheduler answers at tcp://a:1: Timed out; start one with: dask scheduler",
        "cluster tcp://a:1: the scheduler is gone; start the build again, without it or when it is back",
        "--out a/b.onnx: the folder a cannot be written",
        "/proc/x.csv: cannot write 37 bytes: No such file or directory",
    ],
    "device": ["device 'pi4': no answer within 5 s", "ssh: connect to host pi4 port 22: Connection refused"],
    "no-such-file": [
        "nothing: no such folder; a bundle is build/TARGET/MODEL",
        "no.npz: cannot read: No such file or directory",
    ],
    "not-installed": ["option 'cluster' needs the package distributed: pip install distributed"],
    "rejected": ["model 'fix': precision fp16 is for targets with an NVIDIA GPU, 'armv7' has none"],
}


@pytest.mark.parametrize("code", LINES)
def test_codes_of_lines(code: str) -> None:
    assert [error_of(f"kiln: error: {line}").code for line in LINES[code]] == [code] * len(LINES[code])


def test_a_result_has_the_models_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My-Net.onnx").touch()
    for command in ("quantise", "evaluate", "reduce"):
        about = Namespace(command=command, name="My-Net.onnx", model=None)
        assert command_line._part(about, None, {}, None).model == "my_net"


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (("buidl x", "unknown-name"), ("build --jobs x", "usage"), ("list", "usage")):
        status, content, err = answer(capsys, *words.split(), "--json")
        assert (status, content["error"]["code"], err) == (2, code, "")


def test_help_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("build", "compare", "report"):
        status, content, _ = answer(capsys, verb, "-h", "--json")
        assert status == 0 and content["messages"][0].startswith(f"usage: kiln {verb} ")


def test_text_of_a_question_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(_: Namespace) -> command_line.Reply:
        print("on the way")
        part = AnswerPart(goal="compare", files={"tensors": "compare.json"})
        return command_line.Reply(part, lambda: print("text"), wrong=True)

    monkeypatch.setitem(command_line._QUESTIONS, "compare", talk)  # type: ignore[arg-type]
    status, content, err = answer(capsys, "compare", "resnet", "--json")
    assert (status, err, content["results"][0]["goal"]) == (1, "on the way\n", "compare")


def build(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Make `answer_of_goals` run a Python program in place of a build."""
    monkeypatch.setattr(own_process, "_COMMAND", program)


FIGURES = dict.fromkeys(RESULT_KEYS["size"].data, 3)
LISTED = (
    f"FIGURES = {FIGURES}"
    + """
import json, os, sys; from pathlib import Path
Path("old.json").touch(); os.utime("old.json", (1, 1)); Path("size.json").write_text(json.dumps(FIGURES))
entry = {"model": "m", "target": "t", "device": None}
Path(os.environ["KILN_RESULTS"]).write_text(json.dumps([
    {**entry, "goal": "bundle", "data": None,
     "files": dict.fromkeys(["manifest", "folder", "archive", "interface"], "size.json")},
    {**entry, "goal": "size", "files": {"figures": "size.json"}, "data": "figures"},
    {**entry, "goal": "test", "files": {"results": "old.json"}, "data": None}]))
print("kiln: host/m: size"); print("a table"); print("kiln: warning", file=sys.stderr)
"""
)


def test_results_of_goals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    build(monkeypatch, LISTED)
    status, content, err = answer(capsys, "size", "m", "--target", "t", "--json")
    assert (status, content["command"], content["messages"]) == (0, "size", [])
    assert [(part["goal"], part["data"]) for part in content["results"]] == [("size", FIGURES)]
    assert "a table" in err
    status, content, err = answer(capsys, "target=t", "model=m", "-s", "--json")
    assert [part["goal"] for part in content["results"]] == ["build"] and err == ""


def test_an_error_of_a_build_hides_older_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    build(monkeypatch, LISTED + "print('kiln: test failed: m differs', file=sys.stderr); sys.exit(2)")
    status, content, _ = answer(capsys, "size", "test", "model=m", "target=t", "--json")
    assert status == 2 and [part["goal"] for part in content["results"]] == ["size"]
    assert content["error"] == {"code": "test-failed", "text": "test failed: m differs"}


def test_a_build_that_a_signal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is one that the page names, not minus the signal's number."""
    build(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    status, content, _ = answer(capsys, "size", "m", "--target", "t", "--json")
    assert status == 2 and content["error"]["text"] == "ended with status -9"


def test_the_page_explains_every_goal_and_code() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    codes = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Errors")[2], re.MULTILINE))
    assert codes == set(get_args(ErrorCode))
    named = set(re.findall(r"`([a-z]+)`", page))
    assert {goal for goal in ALIASES if goal not in ("bundle", "schema")} <= named
    assert set(command_line._QUESTIONS) <= named
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for goal, keys in RESULT_KEYS.items():
        of_goal = " ".join(row for row in rows if f"`{goal}`" in row.split("|")[1])
        missing = {*keys.data, *keys.files} - ABOUT - set(re.findall(r"`([a-z_0-9]+)`", of_goal))
        assert not missing, (goal, missing)


def test_the_answer_of_version_is_valid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """kiln.command_line.entry writes it without the module that knows the schema."""
    monkeypatch.setattr(sys, "argv", ["kiln", "--version", "--json"])
    assert entry._say_version() == 0
    VALID(json.loads(capsys.readouterr().out))


def test_the_schema_knows_every_goal() -> None:
    """A goal without figures and files of its own, or with others than it states, is none of the schema."""
    goals = {"build" if goal == "bundle" else goal for goal in ALIASES}
    assert set(RESULT_KEYS) == goals | set(command_line._QUESTIONS) | {"version"}
    without = {goal for goal, keys in RESULT_KEYS.items() if not keys.data and not keys.files}
    assert without == {"tune", "schema"}  # of which each form has figures of its own
    answer = {"format": 1, "kiln": "1", "command": "size", "status": 0, "error": None, "messages": []}
    part = {"goal": "package", "model": "m", "target": "t", "device": None, "data": None}
    files = {"package": "p", "figures": "f"}
    VALID({**answer, "results": [{**part, "files": files}]})
    for wrong in ({"files": {}}, {"files": files, "data": {}}, {"files": files, "goal": "pakage"}):
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            VALID({**answer, "results": [{**part, **wrong}]})


def test_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("result", "target", "model", "device"):
        assert command_line.main(["schema", kind]) == 0
        assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_the_line_decides_the_code() -> None:
    assert error_of("kiln: error: not installed: 'qemu-arm'; install it with: x").code == "not-installed"
    assert error_of("kiln: error: budget exceeded for m on t: …").code == "budget"
    assert error_of("kiln: error: stage lower needs more than 2 GB of memory").code == "limit"


def test_the_build_lists_the_results_of_every_goal(tmp_path: Path) -> None:
    """Goals that need no device, for the variants of their names and places."""
    wanted = ["bundle", "test", "run", "plan", "size", "tune", "bench", "profile", "report", "image"]
    command = [
        sys.executable,
        str(ROOT / "build_tools" / "command.py"),
        "-n",
        "target=x86_64",
        "model=resnet",
    ]
    environment = {**os.environ, "KILN_RESULTS": str(tmp_path / "listed.json")}
    subprocess.run([*command, *wanted], cwd=tmp_path, env=environment, check=True, capture_output=True)
    *listed, schemas = json.loads((tmp_path / "listed.json").read_text())
    assert (schemas["goal"], schemas["model"], len(schemas["files"])) == ("schema", None, 3)
    assert sorted(part["goal"] for part in listed) == sorted(wanted)
    for part in listed:
        keys = RESULT_KEYS["build" if part["goal"] == "bundle" else part["goal"]]
        assert set(keys.files) <= set(part["files"])
        assert (part["model"], part["target"], part["device"]) == ("resnet", "x86_64", None)
        assert all(path.startswith("build/") for path in part["files"].values())
        assert part["data"] is None or part["data"] in part["files"]


def test_a_name_that_is_not_utf8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No JSON file can hold it, and stages read their settings from such files."""
    assert command_line.main(["build", "n\udce4t.onnx", "--target", "host"]) == 2
    assert capsys.readouterr().err.startswith("kiln: error: 'n\\udce4t.onnx': not UTF-8, in which paths ")


@pytest.mark.heavy
def test_the_reader_of_an_errors_json_may_end() -> None:
    """`kiln ... --json | head -1` prints no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    words = own_process.kiln_program(["build", "absent.onnx", "--target", "host", "--json"])
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (2, b"")
