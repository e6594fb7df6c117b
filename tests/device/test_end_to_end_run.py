"""`run` prints the class of a photograph by its name."""

from __future__ import annotations

import pytest
from PIL import Image

from .building import Project

pytestmark = pytest.mark.slow


def classes(printed: str) -> list[str]:
    """The names in the table that `run` prints, best first."""
    rows = [line.split("│") for line in printed.splitlines() if line.startswith("│")]
    return [row[2].strip() for row in rows]


@pytest.mark.heavy  # .ci/run begins with it
@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
def test_efficientnet_sees_a_cat(project: Project, target: str) -> None:
    """scikit-image's picture of Chelsea, a tabby."""
    printed = project.make(f"target={target}", "model=efficientnet_lite0", "run", "-j2")
    assert "efficientnet_lite0 on " in printed and "chelsea.png" in printed
    best = classes(printed)
    assert len(best) == 5
    assert set(best[:3]) == {"tiger cat", "Egyptian cat", "tabby, tabby cat"}


@pytest.mark.parametrize("target", ["x86_64", pytest.param("armv7", marks=pytest.mark.heavy)])
def test_resnet_sees_a_cat(project: Project, target: str) -> None:
    assert classes(project.make(f"target={target}", "model=resnet", "run", "-j2"))[0] == "cat"


@pytest.mark.heavy
def test_orientation_of_a_page(project: Project) -> None:
    assert classes(project.make("target=x86_64", "model=pplcnet_orientation", "run", "-j2"))[0] == "0"


def test_a_picture_of_the_users_own(project: Project) -> None:
    """Of another size and kind, in grey; the picture is the only thing that changes."""
    Image.new("L", (90, 50), 200).save(project.folder / "grey.jpg")
    printed = project.make("target=x86_64", "model=resnet", "run", "image=grey.jpg")
    assert "grey.jpg" in printed and len(classes(printed)) == 5
    again = project.make("target=x86_64", "model=resnet", "run", "image=grey.jpg")
    assert "kiln: x86_64/resnet: device-run" in again and again.count("kiln: ") == 1
