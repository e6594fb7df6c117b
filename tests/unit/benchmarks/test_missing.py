"""The benchmark reports a missing peer or bundle in one line, with the command that makes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import contenders, install, subjects
from benchmarks.__main__ import main
from benchmarks.contenders import Contender, Folders, LeftOutError, Subject
from benchmarks.peers import ENVIRONMENTS, KILN, PEERS, load_peer


@pytest.mark.parametrize("peer", PEERS)
def test_without_an_environment_the_line_makes_one(peer: str, tmp_path: Path) -> None:
    folders = Folders(tmp_path, tmp_path / "venv/bin/python")
    with pytest.raises(LeftOutError) as caught:
        contenders.find_peer(peer, folders)
    line = str(caught.value)
    assert line.startswith(f"{peer}: not installed, left out; to install it: python3 -m venv ")
    own = peer if peer in ENVIRONMENTS else "venv"
    file = f"requirements-{own}.txt" if peer in ENVIRONMENTS else "requirements.txt"
    assert line.endswith(f"/{own}/bin/python -m pip install --no-deps -r benchmarks/{file}")
    assert "\n" not in line


def test_kiln_runs_without_an_environment_of_peers(tmp_path: Path) -> None:
    folders = Folders(tmp_path, tmp_path / "venv/bin/python")
    assert folders.python_of(KILN) == Path(sys.executable)
    assert folders.python_of("openvino") == folders.python
    own = Folders(tmp_path, Path(sys.executable))
    assert own.python_of(KILN) == own.python


def test_in_an_environment_without_it_the_missing_packages_are_named(tmp_path: Path) -> None:
    with pytest.raises(LeftOutError) as caught:  # Kiln's own environment has no ncnn
        contenders.find_peer("ncnn", Folders(tmp_path, Path(sys.executable)))
    line = str(caught.value)
    assert line.startswith("ncnn: not installed (ncnn, pnnx), left out; to install it: ")
    assert line.endswith(" -m pip install --no-deps -r benchmarks/requirements.txt")


@pytest.mark.parametrize("peer", PEERS)
def test_requirements_name_every_distribution_of_every_peer(peer: str) -> None:
    text = (Path(contenders.__file__).parents[1] / contenders.requirements(peer)).read_text()
    pinned = {line.split("==")[0] for line in text.splitlines() if "==" in line}
    assert set(load_peer(peer).DISTRIBUTIONS) <= pinned


def test_a_bundle_that_was_not_built_is_named_with_its_command(tmp_path: Path) -> None:
    folders = Folders(tmp_path, Path(sys.executable))
    with pytest.raises(LeftOutError, match=r"^net: not built; to build it: ./kiln target=host model=net$"):
        subjects.find(subjects.SizedModel("net"), folders, ["host"])


def test_a_format_that_a_peer_does_not_read_is_said(tmp_path: Path) -> None:
    peer = Contender("ncnn", "ncnn", "1", ("onnx",))
    subject = Subject(
        "net", "net", tmp_path / "net.tflite", {"format": "tflite", "inputs": [], "outputs": []}
    )
    with pytest.raises(LeftOutError, match=r"^net on ncnn: left out, it reads no .tflite files$"):
        contenders.file_for(peer, subject, Folders(tmp_path, Path(sys.executable)))


def test_a_run_without_anything_to_measure_is_one_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--no-build", "--build", str(tmp_path), "--model", "net", "--peer", "openvino", "--threads", "1"]
    assert main(words) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("bench: openvino: not installed, left out; to install it: ")
    assert lines[1].startswith("bench: net: not built; ")
    assert lines[2:] == ["kiln: error: nothing could be measured; the lines above say why"]


def test_more_threads_than_cores_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--threads", "2", "--cpus", "0", "--no-build"])
    assert caught.value.code == 2
    assert "--threads 2: allowed 1..1" in capfd.readouterr().err


def test_every_environment_is_installed_once_from_its_file(tmp_path: Path) -> None:
    asked = install.commands(PEERS, Folders(tmp_path, tmp_path / "venv/bin/python"))
    files = [Path(words[-1]).name for words in asked.values()]
    assert files == ["requirements.txt", "requirements-executorch.txt", "requirements-onnx2tf.txt"]
    assert next(iter(asked)) == tmp_path / "venv/bin/python"
    assert list(install.commands(["iree"], Folders(tmp_path, tmp_path / "p"))) == [tmp_path / "p"]
