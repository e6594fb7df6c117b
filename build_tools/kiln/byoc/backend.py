"""Declaration of a backend: its library, supported targets, patterns, and the generator of its calls.

SCons imports the backends' files at the start of a build, to find what the build needs; so a backend imports
TVM only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.byoc.match import Group, Match, Pattern
    from kiln.config import Target
    from kiln.config.target import Cuda


@dataclass(frozen=True)
class Wheel:
    """Files of one wheel on PyPI. `files`: path in the wheel → (path in the library's folder, SHA-256).

    `platform` and `python` are the wheel's tags, so that every machine downloads the same wheel. `link`:
    file names of the libraries that programs are linked with; the other files are their dependencies.
    `licence`: SPDX expression for all files of the wheel; empty: the library's licence.
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
    """Files of one Debian package. Programs are linked with all of its libraries.

    `path`: path in Debian's archive, which contains the version; `files`: path in the package → (path in the
    library's folder, SHA-256); several files named `licence.txt` are concatenated. `licence`: SPDX expression
    for the package's files.
    """

    path: str
    files: Mapping[str, tuple[str, str]]
    licence: str = ""

    @property
    def version(self) -> str:
        """Package and version, such as `libxnnpack0 0.0~git20220216.ae108ef-2`."""
        name, version, _ = self.path.rsplit("/", 1)[1].split("_")
        return f"{name} {version}"


@dataclass(frozen=True)
class Library:
    """An external library, and where its files come from.

    `wheels` and `debs`: by architecture, the pinned packages that Kiln downloads. Where there are none,
    `headers` and `shared` (file names, .so or .a) are searched in the folder that the target's `libraries:`
    names, else in `folder`, else where Debian's `package` installs them. `defines`: macros for C that is
    compiled against a wheel. `heap`: who owns memory that the library allocates at run time, "none" or
    "library". `symbols`: the functions that generated C calls.
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
class TargetFacts:
    """The properties of target and model that may decide the generated code.

    `threads`: the greatest number of threads that run tasks of one step. `gpu`: the newest GPU architecture
    of the target, such as 90; 0: no GPU. `precision`: the model's. `cuda`: the target's GPUs. `tiles`: by key
    of a subgraph, the tile that was measured as fastest (`Code.tile`). `rank`: the position, in the backend's
    order of preference, of the tile to use; above 0 to measure the tiles that the backend does not prefer.
    """

    arch: str
    isa: str
    threads: int
    gpu: int = 0
    precision: str = "fp32"
    cuda: Cuda | None = None
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rank: int = 0


@dataclass(frozen=True)
class Launch:
    """Launch configuration of a GPU kernel along x, y and z.

    `grid`: numbers of blocks, which may depend on dynamic dimensions; `block`: threads of a block.
    `ptx`: the code's source is not CUDA C++ but PTX, complete modules one after the other, each for the
    architecture in its `.target`; SYMBOL is an entry point of each. The kernel then becomes a module of its
    own in the model's image. `dynamic_bytes`: dynamic shared memory of a block.
    """

    grid: tuple[Any, Any, Any]
    block: tuple[int, int, int]
    ptx: bool = False
    dynamic_bytes: int = 0


@dataclass(frozen=True)
class Code:
    """Generated C for one subgraph: a function that follows the kernel ABI.

    `source` defines `void SYMBOL(const T *operand, …, T *output[, int32_t size, …][, int32_t begin, int32_t
    end])`; SYMBOL is replaced by a name that contains a hash of the source.

    `operands`: names of the match's operands, in order of the parameters.
    `constants`: by operand, the stored form of a constant (packed at build time).
    `sizes`: expressions of dynamic dimensions, passed as int32. To a GPU kernel each is passed in 8 bytes, so
    that a 0 also serves as a null pointer.
    `tasks`: number of independent tasks; the function computes tasks [begin, end). None: no such parameters.
    `in_place`: operands of which each element is read only to compute the output's element of the same index.
    `reads_past`: number of bytes after an operand that may be read, whatever they contain; Kiln makes sure
    that they can be read.

    `opens`: the library initialises something once, such as weights packed in its own order. The source then
    defines two functions, which return 0 or a positive number, the library's own status (`kiln_open` or the
    run ends with KILN_LIBRARY, whose text names the subgraph and the number):

        static int32_t SYMBOL_make(const T *constant, …)   the operands of `constants`, in order
        int32_t SYMBOL(…)                                  parameters as above

    `kiln_open` calls SYMBOL_make once in a process, however many sessions are opened at the same time
    (byoc/init_once.py); if it fails, a later `kiln_open` tries again. The initialised data is static in the
    source, is never freed, and is shared by all sessions and threads, several of which may run SYMBOL at the
    same time. The constants' addresses are valid only during the call that receives them: SYMBOL_make must
    copy the values that it keeps. SYMBOL's name then also depends on the constants, so that equal shapes with
    different weights are different functions.

    `launch`: the source is CUDA C++, and SYMBOL a kernel of the model's GPU image, which the plan launches.
    Its definition starts on a new line: `extern "C" __global__ void … SYMBOL(const T *operand, …, T *output[,
    int size, …]) {`. Only for a backend whose device is a GPU, without `tasks` and `opens`.

    Without `launch`, the source of a GPU backend is C for the host: `int32_t SYMBOL(kiln_cuda_call *call,
    const void *const *args)`, as declared in kiln_cuda.h; `args` are addresses on the GPU in the order above,
    then the sizes.

    `dtypes`: by operand, and for `output`, the type that the function reads or writes if it differs from the
    graph's; Kiln inserts the conversions (for `patterns` only; constants are stored unconverted).

    `scratch`: bytes of temporary memory; its address follows the output among the parameters.

    `first`: the subgraph is two functions, of which `first` is called before; its result, of the sizes
    `shape` and the type `dtypes["output"]`, is the operand `parts` of this one. The first size is the number
    of parts among which the sums are divided.

    `tile`: the numbers that describe the backend's choice among kernels for this subgraph, if it has one;
    with them in `TargetFacts.tiles` it makes the same choice again.
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
    first: Code | None = None
    shape: Sequence[Any] | None = None
    tile: tuple[int, ...] = ()


@dataclass(frozen=True)
class Backend:
    """One external library.

    `patterns` are matched in the graph before lowering, `groups` in fused functions after it, by their op
    info; both are tried in order. `prepare`: the pass that brings the graph into the form that `patterns`
    match; it must be right wherever no pattern matches, too. `generate` returns the code for a match, or
    None if the library should not compute it. `layouts` documents the operands' layouts, by kind of
    pattern. `device`: where the library computes, "cpu" or "cuda" (targets with a `cuda:` section).
    `include_folders`: include folders for compiling the backend's kernels. `runtime`: C files that the
    generated calls need, compiled once into the model's library; that of a GPU library defines `const
    kiln_cuda_library kiln_library_<name>`. `refusal`: why it does not support a target that `archs` and
    `device` allow; None if it does.
    """

    name: str
    archs: Sequence[str]
    library: Library
    generate: Callable[[Match, TargetFacts], Code | None]
    patterns: Callable[[], Sequence[Pattern]] = lambda: ()
    groups: Callable[[], Sequence[Group]] = lambda: ()
    prepare: Callable[[Any], Any] = lambda mod: mod
    layouts: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    include_folders: Callable[[], Sequence[Path]] = lambda: ()
    runtime: Callable[[], Sequence[Path]] = lambda: ()
    refusal: Callable[[Target], str | None] = lambda _target: None
