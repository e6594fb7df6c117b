"""The layers of tests (tests/conftest.py): the tables, and the arguments of `./kiln test`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = yaml.safe_load((ROOT / "tests/budgets.yaml").read_text(encoding="utf-8"))


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert set(BUDGETS["folders"]) == folders


def test_files_that_start_first_exist() -> None:
    assert [name for name in BUDGETS["first"] if not (ROOT / "tests" / name).is_file()] == []


def test_the_gate_takes_every_nth_case_of_tests_that_exist() -> None:
    """All of them have several cases, and are not heavy already."""
    for name, step in BUDGETS["every"].items():
        file, function = name.split("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        before = text.split(f"\ndef {function}(")[0].split("\n\n\n")[-1]
        assert step > 1 and f"\ndef {function}(" in text and "parametrize" in before, name
        assert "\n@pytest.mark.heavy\n" not in f"\n{before}\n", name


def test_an_unknown_word_is_one_line() -> None:
    done = subprocess.run([ROOT / "kiln", "test", "fsat"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"kiln: error: test fsat: neither a file in {ROOT} nor one of: fast, all, budget\n"
    )
