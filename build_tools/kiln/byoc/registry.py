"""Backend registry: finds backends by name, a user's own in ./backends first, then Kiln's."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from kiln.byoc.backend import Backend
from kiln.config import Target
from kiln.config.byoc import Byoc
from kiln.config.check import choices
from kiln.errors import KilnError

# Kiln's own backends. To add one, add a file to backends/ and its name here.
OWN = ("openblas", "onednn", "xnnpack", "triton", "cutlass", "cublas", "cudnn")
USER_FOLDER = "backends"  # folder of a user's own backends, below the working folder


def names() -> list[str]:
    """Names of all backends: Kiln's own, then the user's."""
    stems = [path.stem for path in sorted(Path.cwd().joinpath(USER_FOLDER).glob("*.py"))]
    return [*OWN, *(name for name in stems if name not in OWN)]


def user_file(name: str) -> Path | None:
    """The file of a user's own backend; None if there is no such file."""
    path = Path.cwd() / USER_FOLDER / f"{name}.py"
    return path if path.is_file() else None


def load(name: str) -> Backend:
    """Load the backend called `name`. Raises KilnError if it is unknown or its file is invalid."""
    path = user_file(name)
    if path is None:
        if name not in OWN:
            raise KilnError(f"byoc: unknown backend '{name}'{choices(name, names())}")
        module = importlib.import_module(f"kiln.byoc.backends.{name}")
    else:
        spec = importlib.util.spec_from_file_location(f"kiln_backend_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # anything may be wrong in a user's file
            raise KilnError(f"{path}: {type(error).__name__}: {error}") from error
    backend = getattr(module, "BACKEND", None)
    if not isinstance(backend, Backend) or backend.name != name:
        raise KilnError(f"{path or name}: a backend's file defines BACKEND, a Backend called '{name}'")
    return backend


def refusal(backend: Backend, target: Target) -> str | None:
    """The reason why a backend cannot support a target, whatever is installed; None if it can."""
    prefix = _prefix(backend.name, target).removesuffix(": ")
    if (target.cuda is not None) != (backend.device == "cuda"):
        runs = "on a CPU" if target.cuda is None else "on a GPU"
        computes = "a CPU" if backend.device == "cpu" else "an NVIDIA GPU"
        return f"{prefix}: it computes on {computes}, the target's kernels run {runs}"
    if target.arch not in backend.archs:
        return f"{prefix}: it supports {', '.join(backend.archs)}, the target is {target.arch}"
    if target.deployment != "hosted" and backend.library.heap != "none":
        return (
            f"{prefix}: {backend.library.name} needs an operating system, the target is {target.deployment}"
        )
    reason = backend.refusal(target)
    return None if reason is None else f"{prefix}: {reason}"


def _prefix(name: str, target: Target) -> str:
    """The prefix of messages about a backend for a target."""
    return f"byoc: backend '{name}' for target '{target.name}': "


def bundled_backends(target: Target) -> list[Backend]:
    """The backends that support a GPU target and whose kernels are part of the bundle."""
    backends = [load(name) for name in names()]
    return [
        backend for backend in backends if refusal(backend, target) is None and backend.library.heap == "none"
    ]


def selected_backends(byoc: Byoc, target: Target) -> list[Backend]:
    """The backends that a configuration names; for `auto` without names, all that support the target.

    On a GPU these are the backends whose kernels are part of the bundle: only they can be measured by a
    program that needs nothing but the driver. Raises KilnError for a named backend that does not support the
    target, or that `auto` cannot measure.
    """
    if byoc.auto and not byoc.named:
        backends = [backend for backend in map(load, names()) if refusal(backend, target) is None]
        if target.cuda is not None:
            backends = bundled_backends(target)
    else:
        backends = [load(name) for name in byoc.named]
        for backend in backends:
            reason = refusal(backend, target)
            if reason is not None:
                raise KilnError(reason)
    on_device = (
        [b.name for b in backends if b.device == "cuda" and b.library.heap != "none"] if byoc.auto else []
    )
    if on_device:
        raise KilnError(
            f"{_prefix(on_device[0], target)}it is a library of the device; byoc=auto chooses among kernels "
            f"that are part of the bundle; byoc={on_device[0]} uses it for all subgraphs that it supports"
        )
    return backends


def check_folders(target: Target) -> None:
    """Raise KilnError where the target's key `libraries` names a backend that it cannot have."""
    for name in target.libraries:
        where = f"target '{target.name}': key 'libraries.{name}'"
        if name not in names():
            raise KilnError(f"{where}: unknown backend '{name}'{choices(name, names())}")
        reason = refusal(load(name), target)
        if reason is not None:
            raise KilnError(f"{where}: remove it: {reason}")


def reason_for_no_backend(target: Target, absent: Mapping[str, str]) -> str:
    """The message for `auto` without a backend: Kiln's own kernels compute everything, and why.

    `absent`: by backend that supports the target but is not available, the reason.
    """
    if absent:
        reason = "; ".join(
            f"{name}: {why.removeprefix(_prefix(name, target))}" for name, why in absent.items()
        )
    else:
        reason = f"no backend supports it, known: {', '.join(names())}"
    return f"byoc=auto on {target.name}: Kiln's own kernels compute everything: {reason}"
