"""PTX for newer GPUs than a bundle has machine code for, in a version that old drivers read, too.

nvcc and Triton write the newest version of PTX that they know. A driver compiles only versions that it knows
itself; one of the first CUDA 13 would reject PTX of a later toolkit, whatever instructions it consists of.
"""

from __future__ import annotations

import re
from pathlib import Path

from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from kiln.sources.cuda_toolkit import cuda_toolkit
from kiln.toolchain import run as run_tool

OLDEST = "9.0"  # the version of CUDA 13.0 (PTX ISA, "Release Notes"), the oldest whose drivers Kiln supports
_VERSION = re.compile(r"^\.version[ \t]+([0-9]+)\.([0-9]+)", re.MULTILINE)


def for_old_drivers(text: str, arch: str) -> str:
    """A PTX module for `arch`, such as sm_90, as version OLDEST if ptxas compiles it so; else unchanged."""
    match = _VERSION.search(text)
    if match is None or (int(match[1]), int(match[2])) <= tuple(map(int, OLDEST.split("."))):
        return text
    older = _VERSION.sub(f".version {OLDEST}", text, count=1)
    with scratch_folder("ptx") as name:
        path = Path(name, "older.ptx")
        path.write_text(older, encoding="utf-8")
        ptxas = str(cuda_toolkit() / "bin" / "ptxas")
        command = [ptxas, f"--gpu-name={arch}", str(path), "-o", str(path.with_suffix(".cubin"))]
        try:
            run_tool(command, f"trying PTX {OLDEST}")
        except KilnError:
            return text  # an instruction or a directive is of a later version
    return older
