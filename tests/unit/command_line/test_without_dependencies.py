"""Kiln where only NumPy is installed besides it, as `pip install --no-deps kiln-build` on a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kiln import __version__
from kiln.command_line.answer import CommandAnswer
from kiln.scons.options import ALIASES, COMMANDS

# Finds NumPy, Kiln and what Python itself brings; any other package is missing.
ALONE = """
import contextlib, importlib.machinery, io, json, sys
class Alone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"kiln", "numpy", *sys.stdlib_module_names}:
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Alone)
"""
COMMAND = """
from kiln.command_line import entry
from kiln.command_line.entry import main
entry._WITH_REFERENCE = ()  # in this process, which has the output
found = []
for words in json.loads(sys.stdin.read()):
    sys.argv = ["kiln", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main()
    found.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
BUILD = """
import kiln
try:
    kiln.build("net.onnx")
except kiln.KilnError as error:
    print(error)
"""


def run(program: str, folder: Path, given: object = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE + program],
        cwd=folder,
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_says_in_one_line_what_it_lacks(tmp_path: Path) -> None:
    verbs = {*ALIASES, *COMMANDS, "build", "-h"}
    lines = [[verb, *more] for verb in sorted(verbs) for more in (["net.onnx"], ["-h"], ["--json"])]
    lines.append(["target=host", "model=net.onnx"])
    for line, (status, out, err) in zip(lines, json.loads(run(COMMAND, tmp_path, lines)), strict=True):
        text = err.removeprefix("kiln: error: ")
        if "--json" in line:
            error = CommandAnswer.model_validate_json(out).error
            assert error is not None and error.code == "not-installed" and not err, line
            text = error.text
        assert status == 2 and text.startswith("not installed: the package '"), (line, text)
        assert text.rstrip("\n").endswith(f"{sys.executable} -m pip install kiln-build"), (line, text)
        assert text.count("\n") == err.count("\n"), line


def test_it_says_its_version(tmp_path: Path) -> None:
    lines = [["--version"], ["-V"], ["--version", "--json"]]
    plain, short, answer = json.loads(run(COMMAND, tmp_path, lines))
    assert plain == short == [0, f"kiln {__version__}\n", ""]
    parsed = CommandAnswer.model_validate_json(answer[1])
    assert parsed.results[0].data == {"version": __version__} and parsed.model_dump(
        mode="json"
    ) == json.loads(answer[1])


def test_a_build_from_python_says_what_it_lacks(tmp_path: Path) -> None:
    assert run(BUILD, tmp_path).startswith("not installed: the package '")


@pytest.mark.parametrize(
    ("library", "module", "word"), [("pydantic", "command_line.entry", "-h"), ("numpy", "__main__", "fetch")]
)
def test_a_library_that_another_module_hides_is_named(
    tmp_path: Path, library: str, module: str, word: str
) -> None:
    """Not a traceback, of a command or a stage: PYTHONPATH may name the libraries of another Python."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / f"{library}.py").write_text("raise ImportError('of another Python')\n")
    program = f"import sys; from kiln.{module} import main; sys.exit(main())"
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", program, word], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{folder} of PYTHONPATH has modules" in done.stderr and "env -u PYTHONPATH" in done.stderr
