"""What Kiln has to know about a machine: the typed form of targets/*.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from kiln.config.byoc import ByocKey
from kiln.config.check import PlacedError, Section
from kiln.config.fields import Bytes, Positive, Storage, Threads

Arch = Literal["x86_64", "aarch64", "armv7"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_OLDEST_GPU = 75  # what CUDA 13 still compiles for
_TRIPLES = {"x86_64": ("x86_64-",), "aarch64": ("aarch64-",), "armv7": ("armv7", "thumbv7")}


def _feature(value: str) -> str:
    if not re.fullmatch(r"[+-][a-z0-9][a-z0-9._-]*", value):
        raise ValueError(f"an LLVM feature with + or - before it expected, such as '+dotprod', got '{value}'")
    return value


Feature = Annotated[
    str, AfterValidator(_feature), WithJsonSchema({"type": "string", "pattern": "^[+-][a-z0-9][a-z0-9._-]*$"})
]


class Vector(Section):
    """What one core's vector unit can do; schedules are functions of this."""

    isa: Literal["sse4", "avx2", "avx512", "neon"] = Field(description="the vector instruction set")
    bits: Literal[64, 128, 256, 512] = Field(description="width of a vector register")
    registers: Positive = Field(description="vector registers of that width")
    fma: bool = Field(description="fused multiply-add")
    dot: Literal["none", "sdot", "vnni"] = Field(description="int8 dot-product instructions")
    in_order: bool = Field(description="issues in order: loads must stand well before their use")


class Cache(Section):
    """Data caches as one core sees them, in bytes."""

    l1d: Bytes = Field(description="bytes of the first data cache")
    l2: Bytes = Field(description="bytes of the second cache, of one core's share")
    l3: Bytes = Field(0, description="of a last cache that all cores share; 0 where there is none")


class CCompiler(Section):
    """The compiler of generated C and of the runtime; kernels come from LLVM as objects."""

    kind: Literal["zig", "gcc", "clang"] = Field(
        description="which compiler: zig comes with Kiln, gcc and clang are the system's"
    )
    command: list[str] | None = Field(
        description="what to run; null: zig of the ziglang package, else the kind"
    )
    target: str | None = Field(description="value of -target; null for compilers that have none")
    flags: list[str] = Field(description="more flags, for every compilation and link")


class Libc(Section):
    """The C library that programs for this target link to."""

    name: Literal["glibc", "musl", "newlib", "none"] = Field(
        description="which C library; none: freestanding"
    )
    version: str | None = Field(description="the oldest version that must do; null for any")
    static: bool = Field(description="programs are linked with the C library and load nothing at run time")


class Emulator(Section):
    """A program that runs this target's programs on another CPU."""

    command: str = Field(description="the program")
    args: list[str] = Field(description="pins the CPU, so that code for a newer one fails")
    env: dict[str, str] = Field(description="environment variables that the program is given")


class Budget(Section):
    """Limits that fail the build when they are exceeded."""

    flash_bytes: Bytes | None = Field(default=None, description="code and parameters")
    ram_bytes: Bytes | None = Field(default=None, description="arena and static data")


def _gpu(value: str) -> str:
    if not re.fullmatch(r"sm_[1-9][0-9]{1,2}", value) or int(value[3:]) < _OLDEST_GPU:
        raise ValueError(f"an architecture from sm_{_OLDEST_GPU} on expected, such as 'sm_90', got '{value}'")
    return value


Gpu = Annotated[
    str, AfterValidator(_gpu), WithJsonSchema({"type": "string", "pattern": "^sm_[1-9][0-9]{1,2}$"})
]


class Cuda(Section):
    """The NVIDIA GPUs whose machine code goes into a bundle; its other keys are about the CPU beside them."""

    archs: list[Gpu] = Field(min_length=1, description="architectures, such as sm_90")
    ptx: bool = Field(description="add PTX of the newest one, which the driver compiles for GPUs still newer")

    @property
    def oldest(self) -> str:
        return min(self.archs, key=lambda arch: int(arch[3:]))

    @property
    def newest(self) -> str:
        return max(self.archs, key=lambda arch: int(arch[3:]))


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):  # folders are called after it
        raise ValueError(f"letters, digits, '.', '_' and '-' expected in the file's name, got {value!r}")
    return value


TargetName = Annotated[
    str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})
]


class Target(Section):
    """One machine that Kiln builds for. Sizes are in bytes."""

    name: TargetName = Field(description="the target's name: that of its file")
    description: str = Field(description="which machines it is for, for people")
    triple: str = Field(description="LLVM triple of the kernels")
    cpu: str = Field(description="LLVM CPU name of the kernels")
    features: list[Feature] = Field(description="LLVM features on top of the CPU's, each with + or -")
    tuned_for: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")] | None = Field(
        default=None,
        description="LLVM's name of the CPU whose measurements choose kernels (`tune`); null: that of `cpu`",
    )
    arch: Arch = Field(description="architecture of the CPU")
    vector: Vector = Field(description="the vector unit of a core")
    cache: Cache = Field(description="data caches, as one core sees them")
    cores: Positive = Field(description="cores that the machine has")
    threads: Threads = Field(description="how kernels run in parallel; none: on the caller's thread")
    c_compiler: CCompiler = Field(description="the compiler of C code")
    libc: Libc = Field(description="the C library that programs link to")
    emulator: Emulator | None = Field(description="what runs its programs on another CPU; null: nothing does")
    deployment: Literal["hosted", "freestanding"] = Field(
        description="hosted: programs of an operating system; freestanding: none"
    )
    budget: Budget = Field(description="limits of flash and RAM for every model")
    params_storage: Storage = Field(description="where parameters are kept unless the model says otherwise")
    weight_growth: float = Field(
        ge=1,
        allow_inf_nan=False,
        description="how many times its size each weight may be stored in to save arithmetic, over all "
        "buckets and special cases; 1: never more (Winograd convolution: 1.8 or 4)",
    )
    cuda: Cuda | None = Field(default=None, description="kernels run on a GPU; left out: on the CPU")
    byoc: ByocKey = Field(default=None, description="external libraries, for models that do not say")
    libraries: dict[str, str] = Field(
        default_factory=dict,
        description="by backend: folder with include/ and lib/ of its library, in place of where Kiln looks",
    )

    @model_validator(mode="after")
    def _one_architecture(self) -> Target:
        beginnings = _TRIPLES[self.arch]
        if not self.triple.startswith(beginnings):
            allowed = " or ".join(f"{word}…" for word in beginnings)
            raise PlacedError(
                ("triple",), f"'{self.triple}' is no triple of arch {self.arch}: {allowed} expected"
            )
        return self

    @model_validator(mode="after")
    def _loads_a_driver(self) -> Target:
        if self.cuda is not None and (self.deployment != "hosted" or self.libc.static):
            raise PlacedError(("cuda",), "the driver is loaded at run time: a hosted target expected, whose "
                              "C library is not linked statically")  # fmt: skip
        return self
