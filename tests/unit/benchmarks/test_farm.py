"""The simulation of builds on many workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln.errors import KilnError

from benchmarks.farm import Work, absolute_files, main, processor_seconds, read_stages, repeated, simulate


def test_builds_are_as_long_as_their_bound() -> None:
    chain = [Work(2, 0, (), True), Work(2, 1, (0,), True)]
    assert simulate(chain, 1, 0.0).seconds == simulate(chain, 9, 0.0).seconds == 5
    many = repeated(chain, 8)
    assert simulate(many, 1, 0.0).seconds == 40
    assert simulate(many, 4, 0.0).seconds == 10
    assert (simulate(many, 8, 0.0).seconds, simulate(many, 8, 0.0).bound) == (5, "longest chain")
    assert simulate(many, 64, 1.0).bound == "build's process"
    assert simulate(many, 64, 1.0).seconds >= 16
    here = repeated([Work(3, 5, (), False)], 4)
    assert simulate(here, 4, 0.0).seconds == 12


@pytest.mark.parametrize("wrong", ["--of=0", "--bundles=-1", "--workers=0", "--cost=nan", "--cost=-1"])
def test_numbers_are_checked(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--times", "times.jsonl", wrong])
    flag, _, value = wrong.partition("=")
    assert f"argument {flag}: '{value}', allowed" in capsys.readouterr().err


def test_stages_are_read_with_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.farm.scheduler_cost", lambda: 0.01)

    def page(file: Path, *options: str) -> str:
        assert main(["--times", str(file), *options]) == 0
        return capsys.readouterr().out

    file = tmp_path / "times.jsonl"
    records = [
        {"seconds": 1, "shared": True, "inputs": {}, "outputs": ["build/in", "build/in/a"]},
        {"seconds": 2, "shared": False, "inputs": {"build/in/a": 117, "x": 117}, "outputs": ["out"]},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    with pytest.raises(KilnError, match=r"times\.jsonl: no line with the build's own processor time"):
        processor_seconds(file)
    file.open("a").write('{"processor": 1.5}\n{"processor": 0.5}\n')  # two builds
    first, second = read_stages(file)
    assert processor_seconds(file) == 2.0
    assert (first.after, second.after, second.shared) == ((), (0,), False)
    assert second.transfer == pytest.approx(2e-6)
    assert "1000.0 ms for each in the build's process" in page(file)
    assert "250.0 ms for each in the build's process" in page(file, "--cost", "0.25")
    file.write_text("[]\n")
    with pytest.raises(KilnError, match="not a file that KILN_STAGE_TIMES named"):
        read_stages(file)


def test_files_are_found_from_the_folder_of_each_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()
    assert absolute_files("net.onnx,resnet") == f"{tmp_path}/net.onnx,resnet"
