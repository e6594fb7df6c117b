"""`python -m kiln <stage>`: runs one stage of a build as a separate program."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from kiln import limits, unforeseen
from kiln.errors import KilnError

STAGES = {
    "fetch": "kiln.sources.stage",
    "import": "kiln.frontend.stage",
    "interface": "kiln.frontend.merge",
    "simplify": "kiln.graph.stage",
    "padding": "kiln.specialize.padding.stage",
    "specialize": "kiln.specialize.stage",
    "edges": "kiln.specialize.edges",
    "golden": "kiln.golden.stage",
    "precision": "kiln.precision.stage",
    "tune": "kiln.tune.stage",
    "library": "kiln.byoc.libraries.stage",
    "byoc-choose": "kiln.tune.choose",
    "packings": "kiln.lower.packings_stage",
    "lower": "kiln.lower.stage",
    "plan": "kiln.plan.stage",
    "emit-objects": "kiln.emit.objects",
    "emit-source": "kiln.emit.source",
    "compile": "kiln.emit.compile",
    "link": "kiln.emit.link",
    "bundle": "kiln.emit.bundle",
    "device-test": "kiln.device.check.test",
    "device-run": "kiln.device.check.run",
    "device-bench": "kiln.device.check.bench",
    "device-flash": "kiln.device.flash",
    "device-installed": "kiln.device.installed",
    "device-program": "kiln.device.program",
    "devices": "kiln.device.deploy.devices",
    "device-schema": "kiln.device.deploy.registry",
    "size": "kiln.report.size",
    "report": "kiln.report.html",
    "profile": "kiln.report.profile",
    "schema": "kiln.config.schema",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage. Returns the exit status: 0, or 2 after printing a one-line error to stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m kiln <stage> …\nstages: " + ", ".join(STAGES))
        return 0 if arguments else 2
    name = arguments[0]
    if name not in STAGES:
        print(f"kiln: error: unknown stage '{name}', allowed: {', '.join(STAGES)}", file=sys.stderr)
        return 2
    if "KILN_PARENT" in os.environ:
        _die_with(int(os.environ["KILN_PARENT"]))
    limits.apply()
    module = importlib.import_module(STAGES[name])
    parser = argparse.ArgumentParser(prog=f"python -m kiln {name}", description=module.__doc__)
    module.add_arguments(parser)
    options = parser.parse_args(arguments[1:])
    try:
        module.run(options)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        unforeseen.tell(name, options, error)
        return 2
    return 0


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when process `parent` ends, so that it writes nothing afterwards."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
