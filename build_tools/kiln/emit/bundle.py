"""bundle: assemble headers, libraries, plan source, parameters, golden vectors and manifest; archive them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kiln import __version__
from kiln.byoc.libraries.folder import bundled
from kiln.config import Target
from kiln.emit import consumers
from kiln.emit.gzip_blocks import GzipWriter
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.plan.schema import Plan, read_plan
from kiln.stages.target import BundleStage

_TOOLS = ("apache-tvm", "apache-tvm-ffi", "ziglang")


def run(args: BundleStage) -> None:
    """Write the bundle's folder, then its archive; each completely or not at all."""
    config, plan = read_json(args.config), read_plan(args.plan)
    target = Target.model_validate(read_json(args.target))
    name = config["name"]
    with atomic_dir(args.out) as folder:
        shutil.copytree(args.link, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
        _copy(args.source / f"{name}_plan.c", folder / "src" / f"{name}_plan.c")
        shutil.copytree(args.golden, folder / "golden", copy_function=shutil.copyfile)
        write_json(folder / "golden" / "tolerance.json", read_json(args.tolerance)["tolerance"])
        for kernel in plan.kernels:
            if kernel.external is not None:
                language = "cu" if kernel.external.block else "c"
                atomic_write(folder / "src" / f"{kernel.symbol}.{language}", kernel.external.source)
        if args.report:
            _copy(args.report, folder / "report.html")
        consumers.write(folder, name, target.name, str(config.get("description") or ""), plan.threads)
        manifest = {
            **describe(config, plan, target, read_json(args.size), bundled(folder)),
            "precision": accuracy(read_json(args.precision) if args.precision else None),
            "byoc": _choice(read_json(args.byoc)) if args.byoc else None,
            "source_sha256": hashlib.sha256(args.model_file.read_bytes()).hexdigest(),
            "files": list_files(folder),
        }
        write_json(folder / "manifest.json", manifest)
    pack(args.out, args.archive)


def _choice(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's `byoc` entry: what byoc=auto chose for each subgraph, and the times in microseconds."""
    return {key: chosen[key] for key in ("summary", "measured_on", "parts")}


def libraries(plan: Plan, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The manifest's `libraries` entry: name, version, licence, files and subgraphs of each external library.

    `given`: the libraries in the bundle's lib/. `heap` in an entry: who owns memory that the library
    allocates at run time; it is not part of any size in the manifest.
    """
    external = [kernel.external for kernel in plan.kernels if kernel.external is not None]
    return [
        {
            **{key: about[key] for key in ("backend", "name", "version", "licence", "heap", "files", "link")},
            "subgraphs": sorted(code.key for code in external if code.backend == about["backend"]),
        }
        for about in given
    ]


def accuracy(measured: Mapping[str, Any] | None) -> dict[str, Any]:
    """The manifest's `precision` entry: the arithmetic, and the greatest error of each output.

    Errors are measured at build time against the reference on the golden vectors, in the output's unit; None
    (null) if a value was not finite or if nothing could be measured. `measured`: precision.json; None: fp32.
    """
    if measured is None:
        return {"name": "fp32"}
    errors: dict[str, list[float]] = {}
    for vector in measured["vectors"]:
        for output in vector["outputs"]:
            errors.setdefault(output["name"], []).append(output["error"])
    greatest = {name: None if None in found else max(found) for name, found in errors.items()}
    return {"name": measured["precision"], "errors": None if measured["failed"] else greatest}


def describe(
    config: Mapping[str, Any],
    plan: Plan,
    target: Target,
    size: Mapping[str, Any],
    given: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The entries of manifest.json about the model and its build; sizes in bytes.

    `given`: the libraries in lib/.
    """
    params = plan.params
    keys = {"name", "strategy", "dims", "arena_bytes", "lower_bound_bytes"}
    return {
        "format": 1,
        "name": config["name"],
        "description": config.get("description"),
        "licence": config.get("licence"),
        "model_hash": plan.model_hash,
        "target": {key: getattr(target, key) for key in ("name", "triple", "cpu", "features", "deployment")},
        "threads": plan.threads,
        "inputs": [port.model_dump() for port in plan.inputs],
        "outputs": [port.model_dump() for port in plan.outputs],
        "dims": [dim.model_dump() for dim in plan.dims],
        "params": {"bytes": params.bytes, "storage": params.storage, "section": params.section},
        "buckets": [bucket.model_dump(include=keys) for bucket in plan.buckets],
        "linked": size.get("linked"),
        "libraries": libraries(plan, given),
        "tools": {"kiln": __version__, **{tool: metadata.version(tool) for tool in _TOOLS}},
    }


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Name, size in bytes and SHA-256 of every file below `folder`, sorted by path."""
    entries = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        name, digest = path.relative_to(folder).as_posix(), hashlib.sha256(content).hexdigest()
        entries.append({"name": name, "bytes": len(content), "sha256": digest})
    return entries


def pack(folder: Path, archive: Path) -> None:
    """Write a reproducible .tar.gz of `folder`: sorted, without dates or owners.

    Raises KilnError if the archive cannot be written.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{archive.name}.", dir=archive.parent)
        with os.fdopen(handle, "wb") as raw, GzipWriter(raw) as stream:  # noqa: SIM117
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for path in sorted([folder, *folder.rglob("*")]):
                    _add(tar, path, Path(folder.name, path.relative_to(folder)).as_posix())
        Path(temporary).chmod(0o644)
        os.replace(temporary, archive)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise KilnError(f"{archive}: cannot write: {error.strerror}") from error


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
        return
    content = path.read_bytes()
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))


def _copy(source: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, out)
