"""Configuration of a target machine: the typed form of targets/*.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from kiln.config.budget import Budget, Clock
from kiln.config.byoc import ByocKey
from kiln.config.c_compiler import CCompiler, Emulator, Libc, c_compiler_fault
from kiln.config.check import Section, first_twice
from kiln.config.faults import PlacedError
from kiln.config.fields import Bytes, Positive, Storage, Threads
from kiln.config.memory import Region, check_regions
from kiln.config.systems import System, system_of
from kiln.config.triples import BARE, triple_fault
from kiln.config.vector_unit import UNITS, Vector

Arch = Literal["x86_64", "aarch64", "armv7", "arm_m", "riscv32", "riscv64", "wasm32"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_VARIANT = r"[a-z][a-z0-9_]*"
# Architectures that the nvcc of sources/cuda_toolkit.py compiles for, by number.
GPUS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
_GPU_NAMES = [f"sm_{number}" for number in GPUS]


def _feature(value: str) -> str:
    if not re.fullmatch(r"[+-][a-z0-9][a-z0-9._-]*", value):
        raise ValueError(f"an LLVM feature with + or - before it expected, such as '+dotprod', got '{value}'")
    return value


def _each_once(values: list[str]) -> list[str]:
    twice = first_twice(value.lstrip("+-") for value in values)
    if twice is not None:
        raise ValueError(f"'{twice}' is there twice")
    return values


Feature = Annotated[
    str, AfterValidator(_feature), WithJsonSchema({"type": "string", "pattern": "^[+-][a-z0-9][a-z0-9._-]*$"})
]

Features = Annotated[list[Feature], AfterValidator(_each_once)]

CpuName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class Cache(Section):
    """Sizes of the data caches that one core uses, in bytes."""

    l1d: Bytes = Field(description="size of the level 1 data cache")
    l2: Bytes = Field(description="size of one core's share of the level 2 cache")
    l3: Bytes = Field(0, description="size of a last-level cache that all cores share; 0: none")


def _variant_name(value: str) -> str:
    if not re.fullmatch(_VARIANT, value):
        raise ValueError(f"lower-case letters, digits and '_' expected, a letter first, got {value!r}")
    return value


VariantName = Annotated[
    str, AfterValidator(_variant_name), WithJsonSchema({"type": "string", "pattern": f"^{_VARIANT}$"})
]


class Variant(Section):
    """Processors with more features than the target's `cpu` and `features`, and with kernels of their own."""

    name: VariantName = Field(description="the name of the variant")
    cpu: str = Field(description="LLVM CPU name of the kernels")
    features: Features = Field(description="LLVM features on top of the CPU's, each with + or -")
    tuned_for: CpuName | None = Field(
        default=None, description="CPU whose tuning records choose kernels; null: the value of `cpu`"
    )
    vector: Vector = Field(description="the vector unit of a core")
    cache: Cache | None = Field(default=None, description="sizes of the data caches; null: the target's")
    emulator: Emulator | None = Field(
        default=None, description="emulator of a processor that has exactly these features; null: none"
    )


def _gpu(value: str) -> str:
    if value not in _GPU_NAMES:
        raise ValueError(f"one of {', '.join(_GPU_NAMES)} expected, got '{value}'")
    return value


Gpu = Annotated[str, AfterValidator(_gpu), WithJsonSchema({"type": "string", "enum": _GPU_NAMES})]


class Cuda(Section):
    """The NVIDIA GPUs whose machine code goes into a bundle; the target's other keys describe the CPU."""

    archs: Annotated[list[Gpu], AfterValidator(_each_once)] = Field(
        min_length=1, description="GPU architectures, such as sm_90"
    )
    ptx: bool = Field(description="add PTX of the newest of `archs`, which drivers compile for newer GPUs")
    multiprocessors: int = Field(default=64, ge=1, le=1024, description="of the GPU that tiles are made for")
    early_launch: bool = Field(default=True, description="from sm_90 on, kernels begin before others end")
    tuned_for: CpuName | None = Field(default=None, description="GPU whose measured choices are used")

    @property
    def oldest(self) -> str:
        """The oldest of the architectures."""
        return min(self.archs, key=lambda arch: int(arch[3:]))

    @property
    def newest(self) -> str:
        """The newest of the architectures."""
        return max(self.archs, key=lambda arch: int(arch[3:]))


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):  # folders are named after the target
        raise ValueError(f"letters, digits, '.', '_' and '-' expected in the file's name, got {value!r}")
    return value


TargetName = Annotated[
    str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})
]


class Target(Section):
    """One machine that Kiln builds for. Sizes are in bytes."""

    name: TargetName = Field(description="the target's name: the name of the YAML file")
    description: str = Field(description="which machines the target is for, for people")
    triple: str = Field(description="LLVM triple of the kernels")
    cpu: str = Field(description="LLVM CPU name of the kernels")
    features: Features = Field(description="LLVM features on top of the CPU's, each with + or -")
    tuned_for: CpuName | None = Field(
        default=None,
        description="LLVM's name of the CPU whose tuning records choose kernels; null: the value of `cpu`",
    )
    base: VariantName = Field(
        default="base", description="name of the variant that the target's own keys describe"
    )
    variants: list[Variant] = Field(
        default_factory=list,
        max_length=7,
        description="further variants of the kernels in the same bundle, each for processors with more "
        "features; kiln_open chooses the last that the processor can run",
    )
    arch: Arch = Field(description="architecture of the CPU")
    vector: Vector = Field(description="the vector unit of a core")
    cache: Cache = Field(description="sizes of the data caches that one core uses")
    cores: Positive = Field(le=1024, description="number of cores of the machine")
    threads: Threads = Field(description="how kernels run in parallel; none: only on the caller's thread")
    c_compiler: CCompiler = Field(description="the compiler of C code")
    libc: Libc = Field(description="the C library that programs link to")
    emulator: Emulator | None = Field(description="emulator for the target's programs; null: none")
    deployment: Literal["hosted", "freestanding"] = Field(
        description="hosted: with an operating system; freestanding: without"
    )
    memory: list[Region] | None = Field(
        default=None,
        description="of a freestanding target: the regions of its memory, for the linker; null: not known, "
        "so that Kiln links no programs that run",
    )
    clock: Clock | None = Field(
        default=None,
        description="of a freestanding target: the rate at which its core works, by which the budget "
        "latency_ms is computed from instructions; null: not known",
    )
    budget: Budget = Field(description="limits of memory, work and time for every model")
    params_storage: Storage = Field(description="storage of parameters, for models that do not specify it")
    weight_growth: float = Field(
        ge=1,
        allow_inf_nan=False,
        description="greatest size of a weight as stored, over all buckets and special cases, as a multiple "
        "of its original size, to save arithmetic; 1: no growth (Winograd convolution: 1.8 or 4)",
    )
    cuda: Cuda | None = Field(default=None, description="GPUs on which kernels run; omitted: on the CPU")
    byoc: ByocKey = Field(default=None, description="external libraries, for models that do not specify them")
    libraries: dict[str, str] = Field(
        default_factory=dict,
        description="by backend: folder with include/ and lib/ of its library, instead of the default place",
    )

    @model_validator(mode="after")
    def _one_architecture(self) -> Target:
        fault = triple_fault(self.triple, self.arch, self.deployment)
        if fault is not None:
            raise PlacedError(("triple",), fault)
        paths: list[tuple[str | int, ...]] = [(), *(("variants", i) for i in range(len(self.variants)))]
        for path, unit in zip(paths, self.vector_units, strict=True):
            archs = UNITS[unit.isa].archs
            if archs and self.arch not in archs:
                raise PlacedError(
                    (*path, "vector", "isa"),
                    f"'{unit.isa}' for arch {self.arch}: of {' and '.join(archs)} alone",
                )
        return self

    @model_validator(mode="after")
    def _variants_fit(self) -> Target:
        names = [self.base]
        for index, variant in enumerate(self.variants):
            if variant.name in names:
                raise PlacedError(
                    ("variants", index, "name"), f"'{variant.name}' is the name of two variants"
                )
            names.append(variant.name)
        seen: dict[tuple[str, frozenset[str], int], str] = {}
        for index, name in enumerate(names):
            key = self.for_variant(name)._told_apart_by
            if key in seen:
                raise PlacedError(
                    ("variants", index - 1, "features"),
                    f"variants '{seen[key]}' and '{name}' have the same cpu and features: leave one out",
                )
            seen[key] = name
        if self.variants and self.cuda is not None:
            raise PlacedError(("variants",), "kernels run on a GPU: no variants of the CPU expected")
        if self.variants and self.arch not in self.system.processors:
            raise PlacedError(("variants",), f"system {self.system.name}: a processor of arch {self.arch} "
                              "cannot be asked what it has: none expected")  # fmt: skip
        return self

    @property
    def _told_apart_by(self) -> tuple[str, frozenset[str], int]:
        """CPU, features, and of SVE the bits of a register: variants with equal ones have equal features.

        Different ones can be equal too, as LLVM knows: see lower/target_check.py.
        """
        return self.cpu, frozenset(self.features), self.vector.bits if self.vector.isa == "sve" else 0

    @property
    def vector_units(self) -> list[Vector]:
        """The vector units of the target itself and of its variants, in their order."""
        return [self.vector, *(variant.vector for variant in self.variants)]

    @property
    def system(self) -> System:
        """The operating system that the triple names."""
        return system_of(self.triple, self.deployment)

    @property
    def variant_names(self) -> list[str]:
        """Names of all variants, the target's own first."""
        return [self.base, *(variant.name for variant in self.variants)]

    def for_variant(self, name: str) -> Target:
        """The target whose own keys describe variant `name`, without further variants.

        Raises KeyError for an unknown name.
        """
        if name == self.base:
            return self.model_copy(update={"variants": []})
        variant = {variant_entry.name: variant_entry for variant_entry in self.variants}[name]
        values = {
            "cpu": variant.cpu, "features": variant.features, "tuned_for": variant.tuned_for,
            "vector": variant.vector, "cache": variant.cache or self.cache,
            "emulator": variant.emulator,
        }  # fmt: skip
        return self.model_copy(update={**values, "base": name, "variants": []})

    def with_variants(self, names: Sequence[str]) -> Target:
        """The target with the variants `names` only; the first of them becomes its own.

        Raises ValueError for an unknown name and for an empty list.
        """
        for name in names:
            if name not in self.variant_names:
                allowed = ", ".join(self.variant_names)
                raise ValueError(f"'{name}' is not a variant of target '{self.name}': {allowed}")
        chosen_names = [name for name in self.variant_names if name in names]
        if not chosen_names:
            raise ValueError(f"at least one of {', '.join(self.variant_names)} expected")
        first = self.for_variant(chosen_names[0])
        return first.model_copy(update={"variants": [v for v in self.variants if v.name in chosen_names[1:]]})

    @model_validator(mode="after")
    def _has_a_system(self) -> Target:
        if self.arch in BARE and self.deployment != "freestanding":
            raise PlacedError(
                ("deployment",), f"'{self.deployment}' for arch {self.arch}: freestanding expected"
            )
        if self.deployment == "freestanding" and self.threads != "none":
            raise PlacedError(("threads",), f"'{self.threads}' on a freestanding target: none expected")
        if self.threads != "none" and not self.system.threads:
            raise PlacedError(("threads",), f"'{self.threads}' on {self.system.name}: none expected")
        if self.memory is not None and self.deployment != "freestanding":
            raise PlacedError(
                ("memory",), "a hosted target's memory is its operating system's: a freestanding one expected"
            )
        if self.clock is not None and self.deployment != "freestanding":
            raise PlacedError(
                ("clock",), "times are measured on a hosted target: a freestanding one expected"
            )
        if self.memory is not None:
            check_regions(self.memory, "memory")
        return self

    @model_validator(mode="after")
    def _has_a_c_library(self) -> Target:
        system, libc = self.system, self.libc
        if libc.name not in system.libcs:
            raise PlacedError(
                ("libc", "name"), f"'{libc.name}' on {system.name}: {' or '.join(system.libcs)} expected"
            )
        if system.oldest is not None:
            version = re.fullmatch(r"[1-9][0-9]{0,3}", libc.version or "")
            if version is None or int(version[0]) < system.oldest:
                raise PlacedError(("libc", "version"), f"'{libc.version or 'null'}' on {system.name}: "
                                  f"a whole number expected, {system.oldest} or more")  # fmt: skip
            named = re.search(r"[a-z]([0-9]+)$", self.triple)
            if named is not None and named[1] != version[0]:
                right = self.triple[: named.start(1)] + version[0]
                raise PlacedError(
                    ("triple",),
                    f"'{self.triple}' and key 'libc.version' ({version[0]}) differ: '{right}' expected",
                )
        if libc.static and libc.name in ("bionic", "libSystem"):
            raise PlacedError(
                ("libc", "static"), f"true on {system.name}, where its C library is shared: false"
            )
        if libc.version is not None and libc.name not in ("glibc", "musl", "bionic"):
            raise PlacedError(("libc", "version"), f"'{libc.version}' of {libc.name}: null expected")
        return self

    @model_validator(mode="after")
    def _has_a_c_compiler(self) -> Target:
        fault = c_compiler_fault(self.c_compiler, self.libc, self.triple, self.arch, self.system)
        if fault is not None:
            raise PlacedError(("c_compiler", "target"), fault)
        return self

    @model_validator(mode="after")
    def _loads_a_driver(self) -> Target:
        if self.cuda is not None and (self.deployment != "hosted" or self.libc.static):
            raise PlacedError(("cuda",), "the driver is loaded at run time: a hosted target expected, whose "
                              "C library is not linked statically")  # fmt: skip
        return self
