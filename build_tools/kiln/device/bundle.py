"""Read access to a bundle: the folder `build/<target>/<model>/`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kiln.arrays import Array
from kiln.byoc.libraries import folder as external
from kiln.config import Target, sizes
from kiln.device import bare
from kiln.device.link import COMPILED, PROGRAMS, common_objects, link, link_flags
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.golden.compare import ErrorLimits, entry_limits, read_tensor
from kiln.golden.schema import GoldenFile, GoldenTensor, read_golden
from kiln.manifest import NAME, read_manifest
from kiln.toolchain import links_with_zig

_PROGRAM = ("check_errors", "check_shapes", "harness", "vector_files")
_HARNESS = ("harness.h", "harness_model.h")
_HEADERS = ("kiln.h", "dlpack.h")  # those which are the same for every model


@dataclass(frozen=True)
class GoldenVector:
    """One golden vector: its name, the values of its tensors, and golden.json's entries of its outputs.

    `bucket` is the name of the bucket that must serve the vector, `dims` the sizes of the model's dimensions;
    both are empty for a model without buckets.
    """

    name: str
    inputs: list[Array]
    outputs: list[Array]
    output_entries: list[GoldenTensor]
    bucket: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)

    def pairs_with(
        self, outputs: Sequence[Array], tolerance: Mapping[str, Any]
    ) -> Iterator[tuple[Array, Array, ErrorLimits, bool]]:
        """The arguments of `kiln.golden.compare.compare` for each of `outputs`, the results of a run."""
        for got, want, entry in zip(outputs, self.outputs, self.output_entries, strict=True):
            limits = entry_limits(tolerance, entry.name, entry.precision, entry.sensitivity)
            if entry.element == "bfloat16" and got.dtype == want.dtype == np.uint16:
                wide = [value.view(ml_dtypes.bfloat16).astype(np.float32) for value in (got, want)]
                yield *wide, limits, False
                continue
            yield got, want, limits, entry.quantised


@dataclass(frozen=True)
class PlacedImage:
    """An image that programs run in place of the model in the library; `copied`: from a copy in RAM."""

    path: Path
    align: int
    copied: bool


@dataclass(frozen=True)
class Bundle:
    """A bundle: its folder and the name of its model.

    `image`: the image that programs run in place of the library's model; None: they run the library's model.
    """

    folder: Path
    name: str
    image: PlacedImage | None = None

    @property
    def include(self) -> Path:
        """Folder of the headers."""
        return self.folder / "include"

    @property
    def library(self) -> Path:
        """The static library."""
        return self.folder / "lib" / f"lib{self.name}.a"

    def library_files(self) -> dict[str, Path]:
        """Shared libraries, by file name, that must be next to a program of this bundle when it runs."""
        names = [name for about in external.bundled(self.folder) for name in about["files"] if ".so" in name]
        return {name: self.folder / "lib" / name for name in names}

    @property
    def shared_library(self) -> Path:
        """Path of the shared library; the file is absent where programs are linked statically."""
        return self.folder / "lib" / f"lib{self.name}.so"

    @property
    def params(self) -> Path:
        """Path of params.bin; the file is absent where the parameters are linked into the library."""
        return self.folder / "params.bin"

    def variants(self, target: Target) -> list[str]:
        """Names of the variants of the kernels for `target`, its own first.

        Raises KilnError where the target has several and the manifest does not say which are in the bundle.
        """
        if not target.variants:
            return [target.base]
        variants = read_manifest(self.folder).get("variants")
        if variants is None:
            raise KilnError(
                f"{self.folder / NAME}: no 'variants': an earlier Kiln made it; build the model again"
            )
        return [variant["name"] for variant in variants]

    def golden(self) -> GoldenFile:
        """The content of golden.json. Raises KilnError when the file is missing or damaged."""
        return read_golden(self.folder / "golden")

    def padding(self) -> Mapping[str, float]:
        """The mean fraction of padding of each pad bucket, by the bucket's name."""
        path = self.folder / "golden" / "padding.json"
        buckets = read_json(path)["buckets"] if path.is_file() else []
        return {bucket["name"]: bucket["mean_padding"] for bucket in buckets}

    def vectors(self) -> list[GoldenVector]:
        """The golden vectors. Raises KilnError when a file is missing, damaged or has another size."""
        folder, loaded = self.folder / "golden", []
        for entry in self.golden().vectors:
            inputs, outputs = (
                [read_tensor(folder / t.file, t.dtype, t.shape) for t in side]
                for side in (entry.inputs, entry.outputs)
            )
            where = (entry.bucket or "", entry.dims)
            loaded.append(GoldenVector(entry.name, inputs, outputs, entry.outputs, *where))
        if not loaded:
            raise KilnError(f"{folder / 'golden.json'}: it holds no golden vector; build the bundle again")
        return loaded

    def runs(self) -> int:
        """The number of golden vectors that are runs of one sequence; 1 for a model without state."""
        return self.golden().runs or 1

    def tolerance(self) -> Mapping[str, Any]:
        """The limits in golden/tolerance.json; empty, which means the defaults, where the file is absent."""
        path = self.folder / "golden" / "tolerance.json"
        return limits_of(read_json(path)) if path.is_file() else {}

    def link_program(
        self, target: Target, work: Path, main: str | Path = "run_vectors", *, shared: bool = False
    ) -> Path:
        """Link a program that runs this bundle's model on vector files; returns the program's path.

        `main`: its source, or NAME for programs/NAME.c.
        With `shared` the program does not contain the model: it loads the shared library next to it.
        """
        # For other flags zig compiles its own libraries again, and the C libraries of WebAssembly and musl:
        # the flags are those of the program whose size is measured. The objects are optimised for speed.
        flags = [
            *(["-Os", "-g"] if links_with_zig(target) else ["-O2"]),
            *link_flags(target, "pthread" if target.system.threads else "none", entry=None),
            *(["-Wl,-rpath,$ORIGIN"] if shared else []),
        ]
        source = main if isinstance(main, Path) else PROGRAMS / f"{main}.c"
        common, include = [source, *(PROGRAMS / f"{name}.c" for name in _PROGRAM)], [self.include]
        headers, compiled = [self.include / name for name in _HEADERS], ["-O2", *COMPILED]
        if source.parent != PROGRAMS:
            include, headers = [*include, PROGRAMS], [*headers, *(PROGRAMS / name for name in _HARNESS)]
        if target.deployment == "freestanding":
            bare_parts = bare.parts(target, work)
            common += bare_parts.sources
            flags += bare_parts.flags
            include += bare_parts.include
            headers += [header for folder in bare_parts.include for header in sorted(folder.glob("*.h"))]
            compiled += [flag for flag in bare_parts.flags if not flag.startswith(("-Wl,", "-nostartfiles"))]
        objects = common_objects(target, common, compiled, headers)
        models = [PROGRAMS / "model.c"]
        if self.image is not None:
            bare_place = ["bare"] if target.deployment == "freestanding" else []
            models = [PROGRAMS / "model_image.c", PROGRAMS.joinpath(*bare_place, "image_place.c")]
            include += [PROGRAMS]
        return link(
            target,
            [*models, *objects],
            [*flags, *self._defines()],
            work / (f"shared_{source.stem}" if shared else source.stem),
            include=include,
            libraries=[self.shared_library if shared else self.library],
            more=external.link_flags(self.folder),
        )

    def _defines(self) -> list[str]:
        """Flags that programs/model.c, or with an image programs/model_image.c, is compiled with."""
        shared_names = [
            f'-DKILN_HEADER="{self.name}.h"',
            f"-DKILN_PARAMS_FILE_BYTES={self.name.upper()}_PARAMS_FILE_BYTES",
        ]
        if self.image is None:
            typed = f"-DKILN_TYPED_PLAN(dims, result, detail)={self.name}_plan({self._typed_plan()})"
            return [*shared_names, f"-DKILN_MODEL={self.name}", typed]
        typed = f"{self.name}_plan_loaded((model), {self._typed_plan()})"
        return [
            *shared_names,
            f"-DKILN_INTERFACE={self.name}_interface",
            f'-DKILN_IMAGE_FILE="{self.image.path}"',
            f"-DKILN_IMAGE_PLACE_ALIGN={self.image.align}",
            f"-DKILN_IMAGE_SHA256={_sha256(self.image.path)}",  # a new image: the program is linked again
            f"-DKILN_TYPED_PLAN(model, dims, result, detail)={typed}",
            *(["-DKILN_IMAGE_COPIED"] if self.image.copied else []),
        ]

    def _typed_plan(self) -> str:
        """C text of the arguments of the model's `…_plan`, one for each dimension of an input among them."""
        golden = self.golden()
        mentioned = {n for entry in golden.inputs or [] for s in entry.shape for n in sizes.names(s)}
        count = sum(dim.name in mentioned for dim in golden.dims or [])
        sizes_text = "".join(f"(dims)[{index}], " for index in range(count))
        return f"{sizes_text}(result), (detail)"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def limits_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tolerance in `config`, a slice of a model's configuration; `config` itself if it is a tolerance."""
    limits: Mapping[str, Any] = config.get("tolerance", config)
    return limits


def open_bundle(folder: Path, image: PlacedImage | None = None) -> Bundle:
    """The bundle in `folder`, with `image` in place of the library's model.

    Raises KilnError when lib/ does not have exactly one library of a model.
    """
    others = {name for about in external.bundled(folder) for name in about["files"]}
    libraries = sorted(path for path in (folder / "lib").glob("lib*.a") if path.name not in others)
    if len(libraries) != 1:
        raise KilnError(f"{folder}: not a bundle: {len(libraries)} libraries in lib/, 1 expected")
    return Bundle(folder, libraries[0].stem.removeprefix("lib"), image)
