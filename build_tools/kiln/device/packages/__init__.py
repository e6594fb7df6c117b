"""package: a bundle in the form that a system's own tools install, such as an npm package for WebAssembly.

Each kind of package is a module here with `make(bundle, target, work, out)`; the target's system names it.
"""

from __future__ import annotations

import importlib

from kiln.config import Target
from kiln.device.bundle import open_bundle
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.stages.use import PackageStage


def run(args: PackageStage) -> None:
    """Write the package of a bundle to `args.out`. Raises KilnError where the system has no such form."""
    target = Target.model_validate(read_json(args.target))
    if target.system.package is None:
        raise KilnError(no_package(target))
    module = importlib.import_module(f"{__name__}.{target.system.package}")
    module.make(open_bundle(args.bundle), target, args.work, args.out)


def no_package(target: Target) -> str:
    """The error for a target whose system has no kind of package of its own."""
    return (
        f"goal 'package': target '{target.name}' is for {target.system.name}, which has no kind of package "
        "that Kiln makes; use the bundle and its .tar.gz"
    )
