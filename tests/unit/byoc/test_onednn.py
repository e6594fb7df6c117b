"""oneDNN's generated C, compiled and called as a plan would call it, compared with TVM's own kernels."""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.byoc.backend import TargetFacts
from kiln.byoc.libraries.find import locate
from kiln.byoc.libraries.folder import LibraryFolder
from kiln.byoc.libraries.stage import collect
from kiln.byoc.partition import Partition, externals
from kiln.byoc.registry import load
from kiln.config import load_target
from kiln.device.check.host_cpu import obstacle
from kiln.emit.compile import c_flags, compile_file
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.graph.bindings import constant
from kiln.graph.clip import clip_to_min_max
from kiln.toolchain import link, oldest_cpu_command
from relaxed import const, module, run_by_tvm
from tvm import relax, tirx

Array = npt.NDArray[Any]
TARGET = load_target("x86_64").for_variant("v3")

pytestmark = pytest.mark.slow

# What may be asked of a convolution: height, width, channels in and out, kernel, then what differs from 1.
CONVS: list[dict[str, Any]] = [
    {"x": (1, 9, 11, 3), "w": (3, 3, 3, 20), "padding": [1, 1, 1, 1], "strides": [2, 2]},
    {"x": (1, 40, 12, 16), "w": (5, 3, 16, 33), "padding": [2, 0, 1, 1], "dilation": [2, 1]},
    {"x": (2, 14, 14, 12), "w": (3, 3, 1, 12), "groups": 12, "padding": [1, 1, 1, 1]},
    {"x": (1, 64, 64, 16), "w": (3, 3, 4, 24), "groups": 4, "strides": [2, 1], "padding": [0, 1, 1, 0]},
    {"x": (1, 16, 16, 64), "w": (1, 1, 64, 96), "strides": [2, 2]},
    {"x": (3, 10, 10, 64), "w": (1, 1, 64, 80)},
    {"x": (1, 1, 30, 8), "w": (1, 7, 8, 8), "padding": [0, 3, 0, 3]},
]


@dataclass(frozen=True)
class OpenedCall:
    """The one external call of a module: its C functions, and what they get."""

    library: ctypes.CDLL
    symbol: str
    constants: list[Array | None]  # by argument
    shared: bool

    def open(self) -> int:
        given = [value for value in self.constants if value is not None]
        return int(getattr(self.library, f"{self.symbol}_open")(*map(pointer, given)))

    def run(self, inputs: Sequence[Array], shape: Sequence[int], *numbers: int) -> Array:
        """The output for the arguments that are no constants, in one call for each pair of tasks."""
        left, out = list(inputs), np.full(shape, np.nan, "float32")
        arguments = [left.pop(0) if value is None else value for value in self.constants]
        sizes = numbers[:-1] if self.shared else numbers
        ranges = [(i, min(i + 2, numbers[-1])) for i in range(0, numbers[-1], 2)] if self.shared else [()]
        for tasks in reversed(ranges):  # in any order
            status = getattr(self.library, self.symbol)(*map(pointer, [*arguments, out]), *sizes, *tasks)
            assert status == 0
        return out


def pointer(value: Array) -> ctypes.c_void_p:
    assert value.flags.c_contiguous
    return ctypes.c_void_p(value.ctypes.data)


@pytest.fixture(scope="session")
def onednn(tmp_path_factory: pytest.TempPathFactory) -> LibraryFolder:
    """The library, fetched as a build does."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("oneDNN's wheel is for x86-64 Linux")
    if (reason := obstacle(TARGET)) is not None:
        pytest.skip(f"{TARGET.name}: {reason}")
    for name in ("libgomp.so.1", "libstdc++.so.6"):
        try:
            ctypes.CDLL(name)
        except OSError:
            pytest.skip(f"{name}, which oneDNN's wheel needs, is not on this machine")
    folder = tmp_path_factory.mktemp("onednn")
    for name in ("include", "lib"):
        (folder / name).mkdir()
    return LibraryFolder(folder, collect(load("onednn"), TARGET, folder))


@pytest.fixture
def build(onednn: LibraryFolder, tmp_path: Path) -> Callable[..., OpenedCall]:
    """Gives a module to the backend, compiles its call and loads it."""

    def made(mod: tvm.IRModule, threads: int = 1, isa: str = "avx2") -> OpenedCall:
        taken = Partition(TargetFacts("x86_64", isa, threads)).graph(load("onednn"))(mod)
        ((symbol, about),) = externals(taken).items()
        bindings = [binding for block in taken["main"].body.blocks for binding in block.bindings]
        (call,) = [one.value for one in bindings if isinstance(one.value, relax.Call)]
        constants = [constant(item) for item in call.args[1].fields if not isinstance(item, relax.ShapeExpr)]
        source, item, out = (tmp_path / f"{symbol}.{end}" for end in ("c", "o", "so"))
        atomic_write(source, about["source"])
        flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", *onednn.compile_flags]
        compile_file([*c_flags(TARGET), *flags], source, item)
        places = [f"-Wl,-rpath,{onednn.path / 'lib'}", *map(str, onednn.linked)]
        words = ["-O2", "-shared", str(item), *places, "-o", str(out)]
        link(TARGET, [*oldest_cpu_command(TARGET), *words], "linking")
        return OpenedCall(ctypes.CDLL(str(out)), symbol, constants, about["parallel"])

    return made


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 1, shape).astype("float32")


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max()))


def convolutions() -> list[Any]:
    """Every case with each instruction set; heavy but for one of a kind: plain, depthwise, of one pixel."""
    gate = {(0, "avx2"), (2, "avx2"), (5, "avx2"), (1, "avx512")}
    return [
        pytest.param(
            *(case, isa),
            marks=[] if (index, isa) in gate else [pytest.mark.heavy],
            id=f"{'x'.join(map(str, case['w']))}-{isa}",
        )
        for index, case in enumerate(CONVS)
        for isa in ("avx2", "avx512")
    ]


@pytest.mark.parametrize(("case", "isa"), convolutions())
def test_convolutions_with_all_that_can_follow(case: dict[str, Any], isa: str, build: Any) -> None:
    x, w = draw(*case["x"]), draw(*case["w"])
    attrs = {key: value for key, value in case.items() if key not in "xw"}

    def conv(data: Any) -> Any:
        return relax.op.nn.conv2d(
            data, const(w), data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC", **attrs
        )

    (plain,) = run_by_tvm(module([(x.shape, "float32")], conv), [x])
    bias, residual = draw(plain.shape[-1]), draw(*plain.shape)
    mod = module(
        [(x.shape, "float32"), (plain.shape, "float32")],
        lambda data, r: relax.op.nn.relu(relax.op.add(relax.op.add(conv(data), const(bias)), r)),
    )
    expected = np.maximum(plain + bias + residual, 0)
    # Twice: the second call finds what the first one has bound. By four threads, whose tasks are apart.
    for threads in (1, 4):
        built = build(mod, threads, isa)
        assert built.open() == 0
        tasks = count(mod, threads, isa) if built.shared else 0
        for _ in range(2):
            close(built.run([x, residual], plain.shape, *([tasks] if built.shared else [])), expected)


def count(mod: tvm.IRModule, threads: int, isa: str) -> int:
    """The number of tasks that the call says it has."""
    taken = Partition(TargetFacts("x86_64", isa, threads)).graph(load("onednn"))(mod)
    bindings = [binding for block in taken["main"].body.blocks for binding in block.bindings]
    (call,) = [one.value for one in bindings if isinstance(one.value, relax.Call)]
    return int(call.args[1].fields[-1].values[-1])


@pytest.mark.parametrize(
    ("rows", "isa"),
    [
        *((rows, "avx2") for rows in (8, 50)),
        *(pytest.param(rows, "avx2", marks=pytest.mark.heavy) for rows in (1, 100)),
        *(pytest.param(rows, "avx512", marks=pytest.mark.heavy) for rows in (1, 8, 50, 100)),
    ],
)
def test_dense_layers_are_clipped(rows: int, isa: str, build: Any) -> None:
    x, w, bias = draw(rows, 200), draw(200, 130), draw(130)
    mod = clip_to_min_max(
        module(
            [(x.shape, "float32")],
            lambda data: relax.op.clip(relax.op.add(relax.op.matmul(data, const(w)), const(bias)), -1.0, 6.0),
        )
    )
    expected = np.clip(x @ w + bias, -1, 6)
    for threads in (1, 4):
        built = build(mod, threads, isa)
        assert built.open() == 0
        tasks = [count(mod, threads, isa)] if built.shared else []
        assert (threads == 4 and rows >= 50) == built.shared
        close(built.run([x], expected.shape, *tasks), expected)


def opened(shape: Sequence[Any], body: Callable[..., Any], *more: Sequence[Any]) -> tvm.IRModule:
    """A module whose input tensors have the given shapes, in which sizes may be variables."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{i}", relax.TensorType(list(sizes), "float32")) for i, sizes in enumerate([shape, *more])
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize("threads", [1, 4])
def test_one_primitive_serves_any_number_of_rows(threads: int, build: Any) -> None:
    n = tirx.Var("n", "int64")
    w, bias = draw(48, 70), draw(70)
    mod = opened(
        [n, 48],
        lambda data, r: relax.op.nn.relu(
            relax.op.add(r, relax.op.add(relax.op.matmul(data, const(w)), const(bias)))
        ),
        [n, 70],
    )
    built = build(mod, threads)
    assert built.open() == 0
    for rows in (1, 63, 64, 65, 200):
        x, residual = draw(rows, 48), draw(rows, 70)
        outputs = built.run([x, residual], (rows, 70), rows, -(-rows // 64))
        close(outputs, np.maximum(x @ w + bias + residual, 0))


@pytest.mark.parametrize("threads", [1, 4])
def test_any_number_of_images(threads: int, build: Any) -> None:
    n, w = tirx.Var("n", "int64"), draw(3, 3, 32, 32)
    mod = opened(
        [n, 20, 20, 32],
        lambda data: relax.op.nn.conv2d(
            data, const(w), padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO"
        ),
    )
    built = build(mod, threads)
    assert built.open() == 0
    for images in (1, 3):
        x = draw(images, 20, 20, 32)
        fixed = module(
            [(x.shape, "float32")],
            lambda data: relax.op.nn.conv2d(
                data, const(w), padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO"
            ),
        )
        (expected,) = run_by_tvm(fixed, [x])
        close(built.run([x], expected.shape, images * (3 if threads == 4 else 1)), expected)


@pytest.mark.parametrize("threads", [1, 4])
def test_products_of_activations_of_dynamic_sizes(threads: int, build: Any) -> None:
    n = tirx.Var("n", "int64")
    mod = opened([2, n, 24], lambda a, b: relax.op.matmul(a, b), [2, 24, n])
    built = build(mod, threads)
    assert built.open() == 0
    for size in (1, 37):
        a, b = draw(2, size, 24), draw(2, 24, size)
        close(built.run([a, b], (2, size, size), size, size, *([2] if built.shared else [])), a @ b)


def test_the_library_starts_no_threads(build: Any) -> None:
    x, w = draw(1, 64, 64, 32), draw(3, 3, 32, 32)
    mod = module(
        [(x.shape, "float32")],
        lambda data: relax.op.nn.conv2d(data, const(w), data_layout="NHWC", kernel_layout="HWIO"),
    )
    built, gomp = build(mod), ctypes.CDLL("libgomp.so.1")
    gomp.omp_set_num_threads(5)  # what this thread has set for itself stays as it is
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir()))
    assert built.open() == 0
    built.run([x], (1, 62, 62, 32))
    assert (len(list(tasks.iterdir())), gomp.omp_get_max_threads()) == (before, 5)


def test_products_of_activations(build: Any) -> None:
    a, b = draw(3, 5, 17, 24), draw(3, 5, 24, 19)
    mod = module([(a.shape, "float32"), (b.shape, "float32")], lambda a, b: relax.op.matmul(a, b))
    for threads in (1, 4):
        built = build(mod, threads)
        assert built.open() == 0
        close(built.run([a, b], (3, 5, 17, 19), *([15] if built.shared else [])), a @ b)


def test_open_heights_are_left_to_kiln() -> None:
    h = tirx.Var("h", "int64")
    mod = opened(
        [1, h, 8, 4],
        lambda data: relax.op.nn.conv2d(
            data, const(draw(3, 3, 4, 4)), data_layout="NHWC", kernel_layout="HWIO"
        ),
    )
    assert not externals(Partition(TargetFacts("x86_64", "avx2", 1)).graph(load("onednn"))(mod))


def test_a_library_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    backend, musl = load("onednn"), load_target("x86_64_musl")
    with pytest.raises(KilnError, match=r"backend 'onednn' for target 'x86_64_musl'.*for glibc"):
        locate(backend, musl)
    given = musl.model_copy(update={"libraries": {"onednn": str(tmp_path)}})
    with pytest.raises(
        KilnError, match=rf"oneDNN is not installed: no .*libdnnl.so below {tmp_path}; give its"
    ):
        locate(backend, given)


def test_a_library_of_the_users_own_is_taken_from_its_folder(onednn: LibraryFolder, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(onednn.path / "include", own / "include")
    (own / "lib").mkdir()
    (own / "lib" / "libdnnl.so").symlink_to(onednn.linked[0])
    target = TARGET.model_copy(update={"libraries": {"onednn": str(own)}})
    for name in ("include", "lib"):
        (tmp_path / "out" / name).mkdir(parents=True)
    about = collect(load("onednn"), target, tmp_path / "out")
    assert (about["version"], about["files"], about["link"]) == ("of the system", *[["libdnnl.so.3"]] * 2)
    assert (tmp_path / "out" / "include" / "oneapi" / "dnnl" / "dnnl.h").is_file()
