"""./kiln without an environment: the Python that it chooses, and the folders that it trusts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import waiting

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


# The beginning of a program that stands in for a Python which fits.
PYTHON = '#!/bin/sh\n[ "$1" != -c ] || { echo CPython 3.14.0; exit; }\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the wrapper alone, an empty lock file, and an SCons that prints its arguments."""
    shutil.copy(ROOT / "kiln", tmp_path / "kiln")
    shutil.copytree(ROOT / "build_tools/setup", tmp_path / "build_tools/setup")
    (tmp_path / "requirements.lock").write_text("# empty\n")
    return tmp_path


def kiln(
    tree: Path, *arguments: str, path: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KILN_", "PIP_"))}
    kept["PATH"] = path or f"{Path(sys.executable).parent}:{kept['PATH']}"
    return subprocess.run(
        [str(tree / "kiln"), *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def finished(tree: Path) -> Path:
    """An environment that looks complete, with a Python that tells how it was called."""
    shown = program(tree / ".venv/bin/python", '#!/bin/sh\necho "$@ in $PWD"\n')
    shutil.copy(tree / "requirements.lock", tree / ".venv/requirements.lock")
    return shown


def test_no_usable_python_is_one_line(tree: Path) -> None:
    old = program(tree / "old/python3", "#!/bin/sh\nexit 1\n")
    for done in (
        kiln(tree, "-h", KILN_PYTHON=str(old)),
        kiln(tree, "-h", path=f"{tree / 'old'}:{minimal_path(tree)}"),
    ):
        assert done.returncode == 2
        assert (
            done.stderr.startswith("kiln: error: CPython 3.10 to 3.14 is needed, found none")
            and done.stderr.count("\n") == 1
        )
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize("version", ["CPython 3.9.18", "CPython 3.15.0", "CPython 3.1.4", "PyPy 3.11.4"])
def test_the_error_names_a_python_that_does_not_fit(tree: Path, version: str) -> None:
    python = program(tree / "other/python3", f"#!/bin/sh\necho {version}\n")
    done = kiln(tree, "-h", KILN_PYTHON=str(python))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tree / ".venv").exists()
    expected = f"kiln: error: CPython 3.10 to 3.14 is needed, {python} is {version}; on Debian or Ubuntu: apt"
    assert done.stderr.startswith(expected)


def test_any_python_that_fits_is_used(tree: Path) -> None:
    """The newest that Kiln runs on, where python3 is older; and one in a folder whose name has spaces."""
    program(tree / "old/python3", "#!/bin/sh\nexit 1\n")
    maker = f'{PYTHON}echo "made by $0"\nexit 3\n'
    newest, other = program(tree / "old/python3.14", maker), program(tree / "my own/python", maker)
    path = f"{tree / 'old'}:{minimal_path(tree)}"
    assert kiln(tree, "-h", path=path).stdout == f"made by {newest}\n"
    assert kiln(tree, "-h", path=path, KILN_PYTHON=str(other)).stdout == f"made by {other}\n"


def test_no_message_of_the_shell_without_cmp(tree: Path) -> None:
    """The environment's own program compares; here it is a Python that tells how it was called."""
    finished(tree)
    python = program(tree / "some/python3", f'{PYTHON}echo "compared"\n')
    path = f"{python.parent}:{minimal_path(tree, cmp=False)}"
    done = kiln(tree, "-h", path=path)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[0]) == (0, "", "compared")
    done = kiln(tree, "-h", path=minimal_path(tree, cmp=False))
    assert done.returncode == 2 and done.stderr.startswith("kiln: error: CPython 3.10 to 3.14 is needed")


def minimal_path(tree: Path, cmp: bool = True) -> str:
    """A PATH with the programs that the wrapper itself uses, and no Python; `cmp`: with that one."""
    folder = tree / ("tools" if cmp else "fewer")
    folder.mkdir(exist_ok=True)
    for name in ("sh", "cmp")[: 2 if cmp else 1]:
        found = shutil.which(name)
        assert found is not None
        if not (folder / name).exists():
            (folder / name).symlink_to(found)
    return str(folder)


def test_variables_for_the_users_own_python_are_not_for_that_of_the_environment(tree: Path) -> None:
    """PYTHONHOME ended it before it could print a line, PYTHONSAFEPATH hid Kiln's modules."""
    program(tree / ".venv/bin/python", "#!/bin/sh\nenv\n")
    shutil.copy(tree / "requirements.lock", tree / ".venv/requirements.lock")
    names = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "PYTHONSAFEPATH", "PYTHONINSPECT")
    done = kiln(tree, "-h", PYTHONPATH="mine", **dict.fromkeys(names, "x"))
    seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PYTHONPATH" in seen and not seen & set(names)


def test_a_python_without_venv_is_one_line(tree: Path) -> None:
    hiding = "import sys; sys.modules['venv'] = None; del sys.modules['venv']; import importlib.util as u; "
    hiding += "find = u.find_spec; u.find_spec = lambda name: None if name == 'venv' else find(name); "
    hiding += "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    text = f'{PYTHON}exec {sys.executable} -c "{hiding}" "$@"\n'
    done = kiln(tree, "-h", KILN_PYTHON=str(program(tree / "bare/python3", text)))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "has no venv module; on Debian or Ubuntu: apt install python3-venv"
    )
    assert "Traceback" not in done.stderr


def test_arguments_go_to_the_command_in_the_callers_folder(tree: Path) -> None:
    finished(tree)
    done = kiln(tree, "target=x86_64", "model=my net.onnx", "-j2")
    command = f"{tree}/build_tools/command.py"
    assert done.stdout == f"{command} target=x86_64 model=my net.onnx -j2 in {Path.cwd()}\n"
    assert kiln(tree).stdout.startswith(f"{command} in ")
    for arguments in (
        "test target=x86_64 model=resnet",
        "test net.onnx --target x86_64",
        "test resnet --target=x86_64",
        "bench target=x86_64 model=resnet",
        "bench net.tflite --target x86_64",
        "bench resnet --device any:aarch64",
        "list targets",
    ):
        assert kiln(tree, *arguments.split()).stdout.startswith(f"{command} {arguments} in ")
    assert kiln(tree, "bench", "--model", "resnet").stdout.startswith(
        f"{tree}/build_tools/program.py benchmarks --model resnet in "
    )
    for line in ("microcontrollers --model net.tflite --peer tflm=a", "farm --models a.onnx,b.onnx"):
        benchmarks = f"{tree}/build_tools/program.py benchmarks"
        assert kiln(tree, "bench", *line.split()).stdout.startswith(f"{benchmarks} {line} in ")


def test_all_tests_of_a_file_run(tree: Path) -> None:
    """With options before the file, those marked heavy were left out without a word."""
    finished(tree)
    shutil.copy(tree / "requirements.lock", tree / "requirements-dev.lock")
    shutil.copy(tree / "requirements.lock", tree / ".venv/requirements-dev.lock")
    (tree / "tests").mkdir()
    (tree / "tests/test_one.py").touch()
    for words in ("tests/test_one.py -n0", "-n0 tests/test_one.py", "-x tests/test_one.py::test_a", "all"):
        assert "not heavy" not in kiln(tree, "test", *words.split()).stdout
    for words in ("", "-n0", "-k tests"):
        assert "not heavy" in kiln(tree, "test", *words.split()).stdout


def test_every_benchmark_is_known(tree: Path) -> None:
    """Other words after bench are models."""
    finished(tree)
    known = re.search(r"_WHAT = \((.*?)\)", (ROOT / "benchmarks/__main__.py").read_text(), re.DOTALL)
    assert known is not None
    names = re.findall(r'"(\w+)"', known[1])
    assert "compare" in names
    for name in names:
        benchmarks = f"{tree}/build_tools/program.py benchmarks"
        assert kiln(tree, "bench", name).stdout.startswith(f"{benchmarks} {name} in ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["__init__", "__main__"])
def test_a_signal_ends_benchmarks_and_what_they_started(tmp_path: Path, where: str, number: int) -> None:
    """Without a traceback, also while a module is imported; the program that runs then ends with them."""
    waits = "import subprocess, sys\n"
    waits += "subprocess.run([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(1000)'])\n"
    for name in ("__init__", "__main__"):
        path = tmp_path / f"benchmarks/{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(waits if name == where else "")
    command = [sys.executable, str(ROOT / "build_tools/program.py"), "benchmarks", "compare"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with waiting.limit("the program that is started"):
        process.stdout.readline()
        process.send_signal(number)
        assert process.communicate() == ("", "kiln: interrupted\n")  # at its end, so the other has ended too
    assert process.returncode == 130


def test_python_writes_bytecode_whatever_the_image_says(tree: Path) -> None:
    """Images of containers set PYTHONDONTWRITEBYTECODE, which would cost seconds in every build."""
    finished(tree)
    program(tree / ".venv/bin/python", '#!/bin/sh\necho "${PYTHONDONTWRITEBYTECODE-written}"\n')
    assert kiln(tree, "list", "targets", PYTHONDONTWRITEBYTECODE="1").stdout == "written\n"


def test_an_unfinished_or_outdated_environment_is_not_trusted(tree: Path) -> None:
    """./kiln calls the program that makes the environment; without a package that takes no network."""
    maker = program(tree / "maker/python3", f'{PYTHON}echo "make $*"\n')
    for damage in ("unfinished", "outdated", "no python"):
        python = finished(tree)
        if damage == "unfinished":
            (tree / ".venv/requirements.lock").unlink()
        elif damage == "outdated":
            (tree / ".venv/requirements.lock").write_text("# of yesterday\n")
        else:
            python.unlink()
        printed = kiln(tree, "--version", KILN_PYTHON=str(maker)).stdout
        made = f"make {tree}/build_tools/setup/environment.py {tree} requirements.lock"
        assert printed.splitlines()[0] == made, damage
        shutil.rmtree(tree / ".venv")


@pytest.mark.heavy  # below, an environment is made in the gate up to its first package
def test_an_environment_is_made_anew(tree: Path) -> None:
    python = finished(tree)
    (tree / ".venv/requirements.lock").unlink()
    kiln(tree, "--version", KILN_PYTHON=sys.executable)
    # A real Python now, not the one that was put there.
    made = subprocess.run([python, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
    assert made == "42\n"
    assert (tree / ".venv/requirements.lock").read_text() == "# empty\n"


@pytest.mark.heavy
def test_a_package_that_cannot_be_had_is_one_line(tree: Path) -> None:
    """The environment is not marked as complete, so that the next ./kiln tries again."""
    (tree / "requirements.lock").write_text(f"absent-package==1.0 --hash=sha256:{'0' * 64}\n")
    done = kiln(tree, "-h", PIP_NO_INDEX="1", KILN_PYTHON=sys.executable)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("kiln: error: cannot install requirements.lock: ")
    assert "absent-package" in done.stderr and "Traceback" not in done.stderr
    assert not (tree / ".venv/requirements.lock").exists()


def test_links_to_the_wrapper(tree: Path) -> None:
    """Absolute and relative ones, of each other, from a folder on the PATH."""
    finished(tree)
    (tree / "my bin").mkdir()
    (tree / "my bin/kiln").symlink_to("../first")
    (tree / "first").symlink_to(tree / "kiln")
    for name in ("my bin/kiln", "first"):
        done = subprocess.run([tree / name, "list"], capture_output=True, text=True, cwd=tree / "my bin")
        assert done.stdout.startswith(f"{tree}/build_tools/command.py list in "), done.stderr


def test_the_wrapper_is_plain_sh() -> None:
    assert subprocess.run(["sh", "-n", ROOT / "kiln"]).returncode == 0
    assert os.access(ROOT / "kiln", os.X_OK)


def test_the_lock_files_agree_and_have_hashes() -> None:
    basic, dev = ((ROOT / name).read_text() for name in ("requirements.lock", "requirements-dev.lock"))
    pinned = {line for line in basic.splitlines() if "==" in line and not line.startswith(" ")}
    assert pinned <= set(dev.splitlines())
    assert all("--hash=sha256:" in basic.split(line, 1)[1].splitlines()[1] for line in pinned)
    for exact in ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post1"):
        assert any(line.startswith(f"{exact} ") for line in pinned)
