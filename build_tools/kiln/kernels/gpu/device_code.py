"""Functions of the project's own that kernels call: CUDA C of this folder, put before the kernels."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_INSTRUCTIONS = "matrix_instructions.cuh"
# Which files a call needs, the first before the second.
_FILES = {"kiln_scores<": "attention.cuh", "kiln_wmma::": "fragments.cuh"}
_KERNEL = 'extern "C" __global__ '
_FRAGMENT = re.compile(r"(wmma::matrix_[ab], 16, 16, 16, )(half|nv_bfloat16)\b")
_TYPES = {"half": "kiln_f16", "nv_bfloat16": "kiln_bf16"}


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def files_of(source: str) -> list[str]:
    """The files of this folder that kernels in CUDA C need, besides the instructions that these call."""
    return [name for call, name in _FILES.items() if call in source]


def with_device_code(source: str) -> str:
    """CUDA C as TVM writes it, with the functions that its kernels call, and own fragments of 16 bits."""
    begin, *kernels = source.split(_KERNEL)
    source = _KERNEL.join([begin, *map(_own_fragments, kernels)])
    files = files_of(source)
    if not files:
        return source
    first = source.index('extern "C"')
    return source[:first] + "\n".join(map(_text, [_INSTRUCTIONS, *files])) + source[first:]


def _own_fragments(kernel: str) -> str:
    """A kernel with fragments.cuh in place of nvcuda::wmma if it multiplies numbers of 16 bits."""
    if not _FRAGMENT.search(kernel):
        return kernel
    kernel = _FRAGMENT.sub(lambda match: match[1] + _TYPES[match[2]], kernel)
    return kernel.replace("nvcuda::wmma::", "kiln_wmma::")
