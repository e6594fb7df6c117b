"""Kiln as a tool of somebody else's SConstruct, after `pip install`, the source tree out of sight."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import SCons
from kiln.paths import cache_dir
from scons_real import ROOT, contents

SCONSTRUCT = """
env = Environment(tools=["default", "kiln"])
bundle = env.KilnBundle("resnet", target="x86_64", variants="v3")
program = env.Program("camera", ["camera.c", bundle.library], CPPPATH=[bundle.include], LIBS=["pthread"])
env.Requires(program, bundle)
env.Alias("check", env.KilnTest("resnet", target="x86_64", variants="v3"))
env.Alias("own", env.KilnBundle("own_net", target="own_board"))
Default(program)
"""
LIBRARIES = ("jinja2", "kiln", "numpy", "onnx", "pydantic", "tflite", "tvm", "yaml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source tree."""
    out, tree = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("tree")
    for name in (
        "build_tools",
        "targets",
        "models",
        "devices",
        "runtime_c",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "SConstruct",
    ):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, tree / name)
    command = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(tree)]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in which only Kiln and SCons are installed; what they need comes from this environment."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copytree(Path(SCons.__file__).parent, site / "SCons")
    program = folder / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(program),
        "install",
        "-q",
        "--no-compile",  # what is imported is compiled then
        "--no-deps",
        "--no-index",
    ]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: a program of their own, a board of their own, a model of their own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "SConstruct").write_text(SCONSTRUCT)
    shutil.copyfile(Path(__file__).parent / "consumer" / "main.c", folder / "camera.c")
    for kind, shipped, own in (("targets", "x86_64_v2", "own_board"), ("models", "resnet", "own_net")):
        (folder / kind).mkdir()
        shutil.copyfile(ROOT / kind / f"{shipped}.yaml", folder / kind / f"{own}.yaml")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the builds: a cache of their own for stages, the user's for what is fetched."""
    folder = tmp_path_factory.mktemp("cache")
    for name in ("files", "programs", "targets", "zig"):
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_dir() / name)
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**inherited, "KILN_CACHE": str(folder)}


def scons(
    python: Path, project: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "SCons", "-Q", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=900)


def test_the_wheel_holds_the_tool_and_the_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"SCons/Tool/kiln.py", "kiln/scons/tool.py", "kiln/data/targets/aarch64.yaml"}
    assert names >= expected | {"kiln/data/models/resnet.yaml", "kiln/data/runtime_c/include/kiln.h"}
    assert [name for name in names if "__pycache__" in name] == []


@pytest.mark.heavy
def test_a_program_of_the_users_links_the_bundle(
    python: Path, project: Path, environment: dict[str, str], built: Path
) -> None:
    done = scons(python, project, environment, "-j2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    golden = project / "build/x86_64/resnet/golden"
    answer = subprocess.run(
        [project / "camera", golden / "random_1.input0.bin"], capture_output=True, text=True
    )
    assert answer.returncode == 0 and len(answer.stdout.split()) == 10
    # In another folder, with two processes, byte by byte what the source tree built.
    ours, theirs = contents(project / "build/x86_64/resnet"), contents(built / "x86_64/resnet")
    assert [name for name in ours | theirs if ours.get(name) != theirs.get(name)] == []
    again = scons(python, project, environment)
    assert again.returncode == 0 and "kiln:" not in again.stdout


@pytest.mark.heavy
def test_tests_and_files_of_the_users_own(python: Path, project: Path, environment: dict[str, str]) -> None:
    done = scons(python, project, environment, "check", "own")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "max error" in done.stdout
    assert (project / "build/own_board/own_net/manifest.json").exists()


@pytest.mark.heavy
def test_the_command_kiln(python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """From a folder without models: a listing, a build, the bundle as a Python function, and an error."""

    def kiln(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python.parent / "kiln"), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
        )

    assert "\nresnet " in kiln("list", "models").stdout
    # Files of the user with the names of modules that a build imports.
    modules = [tmp_path / f"{name}.py" for name in sorted({*sys.stdlib_module_names, *LIBRARIES})]
    for module in modules:
        module.write_text("raise SystemError('a module of the current folder')")
    done = kiln("build", "resnet", "--target", "x86_64", "--variants", "v3", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    for module in modules:
        module.unlink()
    assert done.stdout.startswith("build/x86_64/resnet: built in ")
    program = "import kiln; print(kiln.load('build/x86_64/resnet').plan().bucket)"
    loaded = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert loaded.stdout == "static\n", loaded.stderr
    program = (
        "import kiln; bundle = kiln.build('resnet', target='x86_64', variants='v3'); "
        "print('Arena' in bundle._repr_html_())"
    )
    built = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert built.stdout == "True\n", built.stderr
    wrong = kiln("build", "absent.onnx", "--target", "x86_64")
    assert (wrong.returncode, wrong.stderr) == (2, "kiln: error: model 'absent.onnx': no such file\n")


def test_a_mistake_in_the_users_sconstruct_is_one_line(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "SConstruct").write_text(
        'Environment(tools=["kiln"]).KilnBundle("resnet", target="aarch65")\n'
    )
    done = scons(python, tmp_path, environment)
    assert done.returncode == 2
    assert done.stderr.startswith("kiln: error: unknown target 'aarch65'") and done.stderr.count("\n") == 1
