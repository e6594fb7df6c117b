"""Facts that this machine and a worker must share for a stage to write the same bytes on both."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Mapping

from kiln import __version__
from kiln.scons import digest
from kiln.stages import STAGES

_SOURCE = "source of Kiln"


@functools.cache
def facts() -> Mapping[str, str]:
    """Versions of Kiln, Python and libraries, the kind of machine, and a digest of the stages' source."""
    source = hashlib.sha256("".join(digest.of_stage(name) for name in STAGES).encode()).hexdigest()
    return {
        "Kiln": __version__,
        "Python": "{}.{}".format(*sys.version_info[:2]),
        "machine": f"{platform.system()} {platform.machine()}",
        **digest.versions(),
        _SOURCE: source[:12],
    }


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """The first fact that differs on a worker, such as `Python is 3.12 there, 3.11 here`; None: all agree."""
    for name, ours_of_name in ours.items():
        theirs_of_name = theirs.get(name, "missing")
        if theirs_of_name != ours_of_name:
            return f"{name} is {theirs_of_name} there, {ours_of_name} here"
    return None
