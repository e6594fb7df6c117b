"""What a backend says of itself: its library, the targets it serves, its patterns, how its calls are written.

SCons reads these files too, to know early what a build needs; so they import TVM only inside of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.byoc.match import Group, Match, Pattern


@dataclass(frozen=True)
class Wheel:
    """Files of one wheel on PyPI. `files`: path in the wheel → (path in the library's folder, SHA-256).

    `platform` and `python` are the wheel's tags, so that every machine takes the same one. `link`: which of
    them programs are linked with; the others are what those need. `licence`: of all these files together (an
    SPDX expression); empty: the library's.
    """

    package: str
    version: str
    platform: str
    files: Mapping[str, tuple[str, str]]
    link: Sequence[str] = ()
    licence: str = ""
    python: str = "3.11"


@dataclass(frozen=True)
class Deb:
    """Files of one of Debian's packages. `path`: in Debian's archive, with its version; `files`: path in the
    package → (path in the library's folder, SHA-256); several may be `licence.txt`, one after the other.
    `licence`: of what it holds (an SPDX expression). Programs are linked with all of its libraries."""

    path: str
    files: Mapping[str, tuple[str, str]]
    licence: str = ""

    @property
    def version(self) -> str:
        """`libxnnpack0 0.0~git20220216.ae108ef-2`"""
        name, version, _ = self.path.rsplit("/", 1)[1].split("_")
        return f"{name} {version}"


@dataclass(frozen=True)
class Library:
    """A library as it is linked.

    `wheels` and `debs`: by architecture, the pinned packages that Kiln fetches by itself. Where there are
    none, `headers` and `shared` (file names, .so or .a) are looked for in the folder that the target's
    `libraries:` names, then in `folder`, then where Debian's `package` puts them. `defines` are for compiling
    against a wheel.
    `heap`: who owns the memory that the library takes at run time, "none" or "library". `symbols` are what
    generated C calls.
    """

    name: str
    licence: str
    symbols: Sequence[str]
    headers: Sequence[str] = ()
    shared: Sequence[str] = ()
    package: str = ""
    folder: str | None = None
    wheels: Mapping[str, Sequence[Wheel]] = field(default_factory=dict)
    debs: Mapping[str, Sequence[Deb]] = field(default_factory=dict)
    defines: Sequence[str] = ()
    heap: str = "library"


@dataclass(frozen=True)
class Facts:
    """What code generators may know of a target. `threads`: how many may run tasks of one step.

    `gpu`: the newest of its GPUs' architectures, such as 90; 0: none. `precision`: the model's.
    """

    arch: str
    isa: str
    threads: int
    gpu: int = 0
    precision: str = "fp32"


@dataclass(frozen=True)
class Launch:
    """How a kernel of a GPU is launched: blocks along x, y and z (sizes may be open), threads of each."""

    grid: tuple[Any, Any, Any]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Code:
    """The C of one subgraph: a function in the form of the kernel ABI.

    `source` defines `void SYMBOL(const T *operand, …, T *output[, int32_t size, …][, int32_t begin, int32_t
    end])`; SYMBOL is replaced by a name made from the source. `operands`: names of the match, in order of the
    parameters. `constants`: by operand the form in which a constant is stored (packed at build time).
    `sizes`: expressions of open sizes, passed as int32. `tasks`: the function then computes tasks
    [begin, end), which are independent of each other. `in_place`: operands of which each element is read only
    to compute the output's element of the same index. `reads_past`: so many bytes behind an operand are read
    too, whatever they hold; Kiln sees to it that there are some.

    `opens`: the library makes something ready once, such as weights in an order of its own. The source then
    defines two functions, which return 0 or a positive number, the library's own status (`kiln_open` or the
    run ends with KILN_LIBRARY, whose text names the part of the model and the number):

        static int32_t SYMBOL_make(const T *constant, …)   the operands of `constants`, in order
        int32_t SYMBOL(…)                                  as above, but for its result

    `kiln_open` has SYMBOL_make called once in a process, however many sessions open at once
    (byoc/init_once.py); where it fails, a later `kiln_open` tries again. What it makes is static in the
    source, is never given back, and serves every session and thread: SYMBOL runs in several of them at
    the same time. The constants' addresses are good only during the call that gets them: what is kept is
    copied. SYMBOL's name holds the constants then, so that equal shapes with other weights are other
    functions.

    `launch`: the source is CUDA C++ then, and SYMBOL a kernel of the bundle's image, which the plan launches.
    It is defined on a line of its own: `extern "C" __global__ void … SYMBOL(const T *operand, …, T *output[,
    int size, …]) {`. Only for a backend whose device is a GPU, without `tasks` and `opens`.

    Without `launch`, such a backend's source is C for the host: `int32_t SYMBOL(kiln_cuda_call *call, const
    void *const *args)`, as kiln_cuda.h has it; `args` are addresses on the GPU in the order above, then
    the sizes.

    `dtypes`: by operand, and `output`, the type that the function reads or writes where it is not that of the
    graph; Kiln converts (for `patterns` only, and not constants, which are stored as they are given).

    `scratch`: bytes that the function may use while it runs, behind the output among its parameters.
    """

    source: str
    operands: Sequence[str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sequence[Any] = ()
    tasks: Any = None
    in_place: Sequence[str] = ()
    reads_past: int = 0
    opens: bool = False
    launch: Launch | None = None
    scratch: int = 0
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Backend:
    """One external library.

    `patterns` are matched in the graph, before it is lowered; `groups` in fused functions afterwards, by
    their op info. Of both, what stands first is tried first. `generate` gets a match and writes its C; None:
    this one is not for the library. `layouts` says in which layouts operands must be, by kind of pattern.
    `device`: where it computes, "cpu" or "cuda" (targets with a `cuda:` section). `include_folders`: of the
    headers that its kernels are compiled with. `runtime`: C files that its calls need, compiled once into the
    model's library; one of a GPU defines `const kiln_cuda_library kiln_library_<name>`.
    """

    name: str
    archs: Sequence[str]
    library: Library
    generate: Callable[[Match, Facts], Code | None]
    patterns: Callable[[], Sequence[Pattern]] = lambda: ()
    groups: Callable[[], Sequence[Group]] = lambda: ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    include_folders: Callable[[], Sequence[Path]] = lambda: ()
    runtime: Callable[[], Sequence[Path]] = lambda: ()
