"""package: a bundle in the form that other tools install, such as an npm package or a Zephyr module.

The target's system names the kinds (kiln.config.systems); `npm` is one for WebAssembly, `aar` one for
Android, `xcframework` one for Apple's systems, `firmware` makes those for microcontrollers.
"""

from __future__ import annotations

import hashlib
import re

from kiln import __version__
from kiln.config import Target, read_target
from kiln.config.check import choices
from kiln.device.bundle import Bundle, open_bundle
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.stages.use import PackageStage

_OF_SEVERAL = frozenset({"aar", "xcframework"})


def run(args: PackageStage) -> None:
    """Write the package of a bundle to `args.out`. Raises KilnError if the target has none of this kind."""
    target = read_target(args.target)
    bundle = open_bundle(args.bundle)
    kind = kind_of(target, args.kind)
    if kind == "npm":
        from kiln.device.packages import npm

        npm.make(bundle, target, args.work, args.out)
    elif kind == "aar":
        from kiln.device.packages import aar

        aar.make([(bundle, target), *_others(args)], args.out)
    elif kind == "xcframework":
        from kiln.device.packages import xcframework

        xcframework.make([(bundle, target), *_others(args)], args.out)
    else:
        from kiln.device.packages import firmware

        firmware.make(args.kind, bundle, target, args.out, [open_bundle(folder) for folder in args.models])
    content = args.out.read_bytes()
    facts = {
        "format": 1,
        "kind": kind,
        "version": version(),
        "targets": [target.name, *(other.name for _, other in _others(args))],
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_json(args.facts, facts)


def _others(args: PackageStage) -> list[tuple[Bundle, Target]]:
    """The model's bundles for further targets, with these targets."""
    return [
        (open_bundle(folder), read_target(target))
        for folder, target in zip(args.others, args.other_targets, strict=True)
    ]


def joint_kind_of(target: Target, kind: str | None) -> str:
    """The kind of package of a joint library: one for microcontrollers, as `kind_of` chooses it.

    Raises KilnError, also for a kind that holds one model.
    """
    chosen = kind_of(target, kind)
    if chosen in ("npm", *_OF_SEVERAL):
        raise KilnError(
            f"joint: a package of kind {chosen} holds one model: leave out package=, and add include/ and "
            "lib/ of the joint library to the project"
        )
    return chosen


def holds_several(kind: str) -> bool:
    """Whether one package of this kind holds a model's bundles for several targets."""
    return kind in _OF_SEVERAL


def kind_of(target: Target, kind: str | None) -> str:
    """The kind of package: `kind`, or for None the only one that the target's system has.

    Raises KilnError if the target has no such kind, or several of which none is named.
    """
    kinds = list(target.system.packages)
    if not kinds:
        raise KilnError(
            f"goal 'package': target '{target.name}' is for {target.system.name}, for which Kiln makes no "
            "package; use the bundle and its .tar.gz"
        )
    if kind is None and len(kinds) == 1:
        kind = kinds[0]
    if kind is None:
        raise KilnError(f"goal 'package': which kind? package=KIND, one of: {', '.join(kinds)}")
    if kind not in kinds:
        raise KilnError(f"option 'package': '{kind}' on target '{target.name}'{choices(kind, kinds)}")
    if kind == "aar":
        from kiln.device.packages import aar

        aar.check()
    elif kind not in ("npm", "xcframework"):
        from kiln.device.packages import firmware

        firmware.check(kind, target)
    return kind


def version() -> str:
    """Kiln's version as the three numbers that packages need; 0.0.0 for a version of another form."""
    return __version__ if re.fullmatch(r"\d+\.\d+\.\d+", __version__) else "0.0.0"
