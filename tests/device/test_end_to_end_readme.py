"""README.md and docs/ say what is true: their C compiles and runs, their names and links exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from kiln import toolchain
from kiln.config import load_model, load_target
from kiln.device.link import link, link_flags
from scons_real import ROOT
from symbolic import write

from .building import Project

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MAIN = """
#include <stdio.h>

int main(void) {
    static int8_t image[RESNET_INPUT_0_ELEMENTS], scores[RESNET_OUTPUT_0_ELEMENTS];
    if (classify(image, scores))
        return 1;
    int sum = 0;
    for (unsigned i = 0; i < sizeof scores; i++)
        sum += scores[i] + 128;
    return printf("%d", sum) < 0;
}
"""


def examples(language: str) -> list[str]:
    """The README's blocks in `language`."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_c_example(project: Project, tmp_path: Path) -> None:
    example = examples("c")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    project.make("target=x86_64", "model=resnet")
    bundle, target = project.bundle("x86_64", "resnet"), load_target("x86_64")
    (tmp_path / "camera.c").write_text(example + MAIN)
    program = link(
        target,
        [tmp_path / "camera.c"],
        ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *link_flags(target, "pthread")],
        tmp_path / "camera",
        include=[bundle.include],
        libraries=[bundle.library],
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert 250 <= int(done.stdout) <= 262  # probabilities in steps of 1/256


@pytest.mark.slow
def test_the_example_of_dynamic_sizes(tmp_path: Path) -> None:
    """With a network that has the inputs and outputs of the one in the example, which takes longer."""
    _, example = examples("c")
    (dims,) = examples("yaml")
    shipped = yaml.safe_load((ROOT / "models/magika.yaml").read_text())
    assert yaml.safe_load(dims)["dims"] == shipped["dims"]
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project")
    text = (
        "g (int32[batch,2048] bytes) => (float[batch,214] y) { x = Cast<to = 1>(bytes)\n y = MatMul(x, w) }"
    )
    path = write(project.folder / "magika.onnx", text, w=np.full((2048, 214), 1e-6, "f4"))
    shipped["source"] = {"kind": "file", "path": str(path)}
    (project.folder / "models/magika.yaml").write_text(yaml.safe_dump(shipped))
    project.make("target=x86_64", "model=magika")
    (tmp_path / "kinds.c").write_text(example)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c"]
    include = f"-I{project.bundle('x86_64', 'magika').include}"
    command = toolchain.compiler_command(load_target("x86_64"))
    toolchain.run(
        [*command, *flags, include, str(tmp_path / "kinds.c"), "-o", str(tmp_path / "kinds.o")], "C"
    )


@pytest.mark.heavy
@pytest.mark.skipif(not all(map(shutil.which, ("cmake", "qemu-aarch64"))), reason="needs CMake and QEMU")
def test_getting_started(project: Project) -> None:
    """The commands and files of the page up to the program that runs in QEMU; a board is not there."""
    page = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8").split("\n## 5. ")[0]
    project.make("target=x86_64", "model=resnet", "size")
    source = project.build / ".stages/models/resnet/source.tflite"
    (project.folder / "my_net.tflite").write_bytes(source.read_bytes())
    for language, name in (("c", "main.c"), ("cmake", "CMakeLists.txt"), ("sh", "zig-cc")):
        [text] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (project.folder / name).write_text(text.replace("KILN/", f"{ROOT}/"), encoding="utf-8")
    commands = re.findall(r"^ {4}((?:\./kiln|chmod|cmake|qemu)\b(?:.*\\\n)*.*)", page, re.MULTILINE)
    assert len(commands) == 7
    (project.folder / "kiln").symlink_to(ROOT / "kiln")
    for command in commands:
        command = command.replace("KILN/build", str(project.build))
        done = subprocess.run(
            ["bash", "-euc", command], cwd=project.folder, env=project.environment(), capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert len(done.stdout.split()) == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_links(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"target=([a-z0-9_,]+)", text):
        for name in target.split(","):
            if name not in ("board", "my_board"):  # files that the pages have their readers write
                load_target(name)
    for model in re.findall(r"model=([a-z0-9_,/.:]+)", text):
        for name in model.split(","):
            written_by_reader = (
                f"**`models/{name}.yaml`**" in text
            )  # a file that the page has its reader write
            if not written_by_reader and ":" not in name and not name.endswith((".onnx", ".tflite", ".pt2")):
                load_model(name)
    for link_to in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link_to.startswith("http") or (page.parent / link_to).exists(), link_to
    for path in re.findall(
        r"`((?:build_tools|docs|kernels|plan|graph|frontend|scons|tests|runtime_c)/[\w/]+\.\w+)`", text
    ):
        written = f"`{path}`:\n" in text  # a file that the page has its reader write
        assert written or (ROOT / path).exists() or (ROOT / "build_tools/kiln" / path).exists(), path
