"""Kernels that backends give as PTX: machine code by ptxas, and one fat binary, a module, for each."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kiln import forks
from kiln.config.target import Cuda
from kiln.emit.cuda_ptx import for_old_drivers
from kiln.emit.cuda_usage import usage
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.kernels.gpu import early_launch
from kiln.lower.schema import ExternalCode
from kiln.sources.cuda_toolkit import VERSION, cuda_toolkit
from kiln.toolchain import run as run_tool

_FORM = "waits, old PTX"  # of what _compile adds to a module, as part of the key of the cache
_OPTIONS = ("-O3", "--regAllocOptLevel=2")  # the second as Triton passes it, for a fault of ptxas 13
Usage = dict[str, dict[str, dict[str, int]]]


def modules_of(codes: Mapping[str, ExternalCode], cuda: Cuda, cache: Path) -> dict[str, tuple[bytes, Usage]]:
    """The fat binary of each code in PTX and the resources of its kernel, by symbol.

    The results are cached in the folder `cache`. Raises KilnError if ptxas rejects a kernel or if an
    architecture is missing.
    """
    ptx_codes = {symbol: code for symbol, code in sorted(codes.items()) if code.ptx}
    facts = "\0".join([VERSION, _FORM, *_OPTIONS, *cuda.archs, str(cuda.ptx)])
    digests = {
        symbol: hashlib.sha256("\0".join([facts, code.source]).encode()) for symbol, code in ptx_codes.items()
    }
    paths = {
        symbol: cache / "cuda" / f"{digest.hexdigest()[:32]}.fatbin" for symbol, digest in digests.items()
    }

    def make(symbol: str) -> None:
        image, used = _compile(symbol, ptx_codes[symbol].source, cuda, paths[symbol].parent)
        atomic_write(paths[symbol], image)
        write_json(paths[symbol].with_suffix(".json"), used)

    missing = [s for s, path in paths.items() if not (path.is_file() and path.with_suffix(".json").is_file())]
    forks.each(make, missing)
    return {
        symbol: (path.read_bytes(), read_json(path.with_suffix(".json"))) for symbol, path in paths.items()
    }


def texts_of(source: str) -> dict[str, str]:
    """The modules of a source in PTX, by the architecture in their `.target`, such as sm_90a."""
    texts = re.split(r"^(?=\.version\b)", source, flags=re.MULTILINE)[1:]
    return {re.findall(r"^\.target\s+(\w+)", text, re.MULTILINE)[0]: text for text in texts}


def _compile(symbol: str, source: str, cuda: Cuda, folder: Path) -> tuple[bytes, Usage]:
    """The fat binary of one kernel and its resources.

    Machine code is from the PTX of the same architecture, sm_90a for a sm_90; PTX for newer GPUs is the first
    module whose architecture is not bound to one generation, as sm_90a is.
    """
    texts, tools = texts_of(source), cuda_toolkit() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    used: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix=".ptxas-", dir=folder) as name:
        work, images = Path(name), []
        for arch in cuda.archs:
            exact = next((text for text in (f"{arch}a", arch) if text in texts), None)
            if exact is None:
                raise KilnError(f"{symbol}: no PTX for {arch}, only for {', '.join(texts)}")
            text = early_launch.in_ptx(texts[exact], exact)
            (work / f"{exact}.ptx").write_text(text, encoding="utf-8")
            command = [str(tools / "ptxas"), *_OPTIONS, f"--gpu-name={exact}", str(work / f"{exact}.ptx")]
            run_tool([*command, "-o", str(work / f"{exact}.cubin")], f"compiling {symbol} for {arch}")
            used[arch] = usage((work / f"{exact}.cubin").read_bytes())[symbol]
            images.append(f"--image3=kind=elf,sm={exact[3:]},file={work / exact}.cubin")
        forward = next((arch for arch in texts if cuda.ptx and arch[3:].isdigit()), None)
        if forward is not None:
            text = for_old_drivers(texts[forward], forward)
            (work / f"{forward}.ptx").write_text(text, encoding="utf-8")
            images.append(f"--image3=kind=ptx,sm={forward[3:]},file={work / forward}.ptx")
        command = [str(tools / "fatbinary"), "--64", f"--create={work / 'module.fatbin'}", *images]
        run_tool(command, f"packing {symbol}")
        return (work / "module.fatbin").read_bytes(), {symbol: used}
