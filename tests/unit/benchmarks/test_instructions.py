"""Instructions under QEMU: the plugin counts them all, and a row of the table says what they mean."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.device.link import link
from kiln.errors import KilnError
from plans import plan_of

from benchmarks.__main__ import main
from benchmarks.arm64 import describe_processor, interpreter
from benchmarks.instructions import Row, multiply_adds
from benchmarks.plugin import make_plugin

LOOP = """
int main(int count, char **words) {
    (void)words;
    for (long i = 0; i < 1000 * (long)count; i++)
        __asm__ volatile("nop\\n nop\\n nop\\n nop\\n nop\\n nop\\n nop\\n nop");
    return 0;
}
"""


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="needs QEMU: apt install qemu-user")
def test_the_plugin_counts_every_instruction(tmp_path: Path) -> None:
    source = tmp_path / "loop.c"
    source.write_text(LOOP)
    program = link(load_target("aarch64_musl"), [source], ["-O1", "-static"], tmp_path / "loop")
    plugin, _ = make_plugin("qemu-aarch64", tmp_path)
    counts = []
    for words in range(3):
        out = tmp_path / "count"
        command = ["qemu-aarch64", "-plugin", f"{plugin},out={out}", str(program), *["x"] * words]
        subprocess.run(command, check=True)
        counts.append(int(out.read_text()))
    rounds = [after - before for before, after in itertools.pairwise(counts)]
    for more in rounds:  # 1000 times: eight instructions, an addition, a comparison, a branch
        assert 10_000 <= more < 12_000
    assert abs(rounds[0] - rounds[1]) < 200  # one more word to carry at the start


def test_multiply_adds_are_those_of_the_bucket_that_serves() -> None:
    box = {"n": {"min": 1, "max": 4, "multiple": 1}}
    rest = {"n": {"min": 1, "max": 9, "multiple": 1}}
    step = {"kernel": "k", "label": "", "args": []}
    buckets = [
        {"dims": box, "steps": [{**step, "macs": 100}, step]},
        {"dims": rest, "steps": [{**step, "macs": 56}]},
    ]
    plan = plan_of(name="net", buckets=buckets)
    assert [multiply_adds(plan, {"n": size}) for size in (4, 8)] == [100, 56]
    with pytest.raises(KilnError, match="no bucket"):
        multiply_adds(plan, {"n": 10})


def test_a_row_compares_only_what_was_counted() -> None:
    row = Row("net", "aarch64", 2_000_000, {"kiln": 1_000_000, "litert": 1_500_000})
    names = ["kiln", "litert"]
    assert row.cells(names) == ["net", "aarch64", "2.0", "1.0", "1.5", "0.500", "0.750", "1.50"]
    assert Row("net", "aarch64", 2_000_000, {"kiln": 1_000_000}).cells(names)[4:] == ["–", "0.500", "–", "–"]


@pytest.mark.heavy
def test_the_interpreter_is_python_itself(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    for name in ("python3", "python3.11", "python3.11-config"):
        (tmp_path / "usr/bin" / name).touch()
    assert interpreter(tmp_path).name == "python3.11"
    with pytest.raises(KilnError, match="holds no Python"):
        interpreter(tmp_path / "usr")


def test_only_64_bit_arm_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["instructions", "--target", "armv7", "--model", "net", "--no-build", "--build", str(tmp_path)]
    assert main(words) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"kiln: error: --target 'armv7': .* 64-bit ARM.*", last)


def test_the_processor_is_described_as_linux_would(tmp_path: Path) -> None:
    describe_processor(tmp_path, ["-cpu", "cortex-a76,pmu=off"])
    text = (tmp_path / "proc/cpuinfo").read_text()
    assert "CPU part\t: 0xd0b\n" in text
    assert " asimddp\n" in text
    assert (tmp_path / "sys/devices/system/cpu/present").read_text() == "0\n"
    with pytest.raises(KilnError, match="-cpu max: instructions are counted for cortex-a35, "):
        describe_processor(tmp_path, ["-cpu", "max"])
