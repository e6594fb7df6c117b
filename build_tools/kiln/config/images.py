"""Targets for which a model can be one file with code, plan and parameters: an image."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.config.target import Target
from kiln.errors import KilnError


def check_images(target: Target, libraries: Sequence[str] = ()) -> None:
    """Raise KilnError for a target without images, with the way in which its models are exchanged instead.

    libraries: names of the external libraries that may compute subgraphs, which no image can have.
    """
    if target.cuda is not None:
        raise KilnError(
            f"image: target '{target.name}': code of a GPU cannot be part of an image; a running program "
            "loads lib<model>.so of a later bundle in its place (kiln_load, docs/trust.md)"
        )
    if target.system.format != "elf":
        raise KilnError(
            f"image: target '{target.name}' has {target.system.format} objects, elf expected: for this "
            "system a new model is a new bundle, which programs are linked with"
        )
    if libraries:
        raise KilnError(
            f"image: code of the library {', '.join(libraries)} needs addresses and variables of its own; "
            "build with byoc=none"
        )
