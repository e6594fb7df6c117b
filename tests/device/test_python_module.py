"""kiln.load: bundles as Python functions, and the layouts of kiln.h's structures that ctypes repeats."""

from __future__ import annotations

import ctypes
import gc
import json
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kiln
import numpy as np
import pytest
from kiln.emit.headers import dlpack_h
from kiln.runtime import structs
from kiln.runtime.library import RunError
from kiln.runtime.notebook import report_frame

from . import sized, tiny
from .conftest import Maker

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)
ROOT = Path(__file__).resolve().parents[2]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = (X * tiny.W + 1) ** 2
STRUCTS = {
    "DLTensor": structs.DLTensor, "kiln_detail": structs.CDetail, "kiln_tensor": structs.CTensor,
    "kiln_dim": structs.CDim, "kiln_bucket": structs.CBucket, "kiln_model": structs.CModel,
    "kiln_variant": structs.CVariant,
    "kiln_config": structs.CConfig, "kiln_session": structs.CSession, "kiln_plan_result": structs.CPlanResult,
}  # fmt: skip


def bundle_of(make: Maker, storage: str = "embedded") -> Path:
    """The tiny bundle with the part of a manifest that is read."""
    return with_manifest(make(tiny.base_target("x86_64_v2"), storage).bundle, tiny.plan(storage))


def with_manifest(bundle: Path, plan: dict[str, Any]) -> Path:
    """Complete a bundle made by hand: the manifest's keys that are read, and a shared library."""
    library = bundle / "lib" / f"lib{plan['name']}"
    archive_flags = ["-Wl,--whole-archive", f"{library}.a", "-Wl,--no-whole-archive"]
    subprocess.run(["gcc", "-shared", *archive_flags, "-lpthread", "-o", f"{library}.so"], check=True)
    fields = {key: plan[key] for key in ("name", "inputs", "outputs", "params")}
    (bundle / "manifest.json").write_text(json.dumps({**fields, "target": {"name": "any"}}))
    return bundle


@pytest.fixture(scope="module")
def net(make: Maker) -> kiln.runtime.Network:
    return kiln.load(bundle_of(make))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> kiln.runtime.Network:
    """x and mask of shape [batch, width]; batch 1..2, width 2..16 by 2, three buckets."""
    folder = tmp_path_factory.mktemp("sized") / "bundle"
    return kiln.load(with_manifest(sized.build(folder, tiny.base_target("x86_64_v2")), sized.plan()))


def test_structures_have_the_layout_of_the_header(tmp_path: Path) -> None:
    """Offsets of all repeated fields, the sizes of whole structures, and the constants."""
    whole = [
        "DLTensor",
        "kiln_detail",
        "kiln_tensor",
        "kiln_dim",
        "kiln_bucket",
        "kiln_config",
        "kiln_plan_result",
    ]
    fields = [(name, field[0]) for name, struct in STRUCTS.items() for field in struct._fields_]
    lines = [f'printf("%zu\\n", offsetof({name}, {field}));' for name, field in fields]
    lines += [f'printf("%zu\\n", sizeof({name}));' for name in whole]
    lines += [
        f'printf("%zu\\n", (size_t){value});' for value in ("KILN_ABI", "KILN_MAX_DIMS", "sizeof(kiln_pool)")
    ]
    lines += ['printf("%zu\\n", sizeof(kiln_session));']
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(f'#include <stdio.h>\n#include "kiln.h"\nint main(void) {{\n{body}\nreturn 0;\n}}\n')
    include = ["-I", str(dlpack_h().parent), "-I", str(ROOT / "runtime_c" / "include")]
    subprocess.run(["gcc", *include, str(source), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True)
    *found, session_bytes = [int(line) for line in printed.stdout.split()]
    expected = [getattr(STRUCTS[name], field).offset for name, field in fields]
    expected += [ctypes.sizeof(STRUCTS[name]) for name in whole]
    assert found == [*expected, structs.ABI, structs.MAX_DIMS, 8 * structs.POOL_WORDS]
    assert session_bytes <= structs.SESSION_BYTES


def test_traffic(dynamic: Any, net: Any, tmp_path: Path) -> None:
    """Runs are counted by their sizes, refused ones are not, and a file gets each run once."""
    path = tmp_path / "seen.csv"
    dynamic.write_traffic(tmp_path / "earlier.csv")  # runs of other tests
    for batch, width in ((1, 4), (2, 8), (1, 4)):
        shape = (batch, width)
        dynamic(np.ones(shape, np.float32), np.ones(shape, np.float32))
    with pytest.raises(kiln.KilnError):
        dynamic(np.ones((1, 18), np.float32), np.ones((1, 18), np.float32))
    bound = dynamic.bind({info.name: np.ones((2, 8), np.float32) for info in dynamic.inputs})
    bound()
    assert dynamic.write_traffic(path) == 4
    assert path.read_text() == "batch,width,count\n1,4,2\n2,8,2\n"
    dynamic(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32))
    assert (dynamic.write_traffic(path), dynamic.write_traffic(path)) == (1, 0)
    assert path.read_text() == "batch,width,count\n1,4,3\n2,8,2\n"
    path.write_text("seq,count\n")
    dynamic(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32))
    with pytest.raises(kiln.KilnError, match=r"seen.csv: traffic of seq, expected batch, width"):
        dynamic.write_traffic(path)
    assert path.read_text() == "seq,count\n"
    with pytest.raises(kiln.KilnError, match="no dimension is dynamic"):
        net.write_traffic(path)


def test_contents(dynamic: Any, net: Any, tmp_path: Path) -> None:
    """Contents of inputs are counted on request, also for models without dynamic dimensions."""
    path, folder = tmp_path / "seen.csv", dynamic._library.folder
    with kiln.load(folder, contents=True) as again, again.copy() as copied:
        one, zero = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
        again(one, zero)
        again(one, zero + 2)
        again.bind({info.name: zero for info in again.inputs})()
        copied(one, one)
        assert (again.write_traffic(path), copied.write_traffic(path)) == (3, 1)
        names = [info.name for info in again.inputs]
    header = ",".join(f"{name}:{kind}" for name in sorted(names) for kind in ("zeros", "ones", "other"))
    counts = {names[0]: "1,3,0", names[1]: "2,1,1"}
    line = ",".join(counts[name] for name in sorted(names))
    assert path.read_text() == f"batch,width,count,{header}\n1,4,4,{line}\n"
    with kiln.load(net._library.folder, contents=True) as fixed:
        fixed(np.zeros((2, 3), np.float32))
        assert fixed.write_traffic(tmp_path / "fixed.csv") == 1
    assert (tmp_path / "fixed.csv").read_text() == "count,x:zeros,x:ones,x:other\n1,1,0,0\n"


def test_run(net: Any) -> None:
    assert repr(net) == "<kiln.Network tiny (x: float32[2, 3]) -> (y: float32[2, 3])>"
    assert np.array_equal(net(X), Y)
    assert np.array_equal(net(x=X), Y)
    assert np.array_equal(net(X.tolist()), Y)
    assert np.array_equal(net(np.asfortranarray(X)), Y)
    assert np.array_equal(net(X[::-1])[::-1], Y)
    assert net.variant == "v2"
    assert net.plan() == net.plan((2, 3))
    assert net.plan().outputs == ((2, 3),)


def test_outputs_are_written_where_the_caller_says(net: Any) -> None:
    out = np.zeros((2, 3), np.float32)
    assert net.run({"x": X}, out={"y": out})["y"] is out
    assert np.array_equal(out, Y)


def test_a_bound_run_reads_and_writes_the_same_memory(net: Any) -> None:
    x = X.copy()
    bound = net.bind({"x": x})
    assert np.array_equal(bound()["y"], Y)
    x[:] = 0
    assert np.array_equal(bound()["y"], np.ones((2, 3), np.float32))
    with pytest.raises(kiln.KilnError, match="input 'x' must be a contiguous array to be bound"):
        net.bind({"x": np.asfortranarray(X)})


class Foreign:
    """A tensor of another library: nothing but DLPack's two methods."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_dlpack_tensors_are_not_copied(net: Any) -> None:
    out = np.zeros((2, 3), np.float32)
    net.run({"x": Foreign(X.copy())}, out={"y": Foreign(out)})
    assert np.array_equal(out, Y)


class NegatedForeign(Foreign):
    """A tensor whose memory has the negated values, as PyTorch's z.conj().imag."""

    def is_neg(self) -> bool:
        return True


def test_dlpack_tensors_that_are_negated_are_refused(net: Any) -> None:
    """The library gives their memory without a word: the run read the values with the wrong sign."""
    with pytest.raises(kiln.KilnError, match=r"input 'x': .*negated values.*: tensor\.resolve_neg\(\)"):
        net(NegatedForeign(X.copy()))
    with pytest.raises(kiln.KilnError, match=r"output 'y': .*negated values"):
        net.run({"x": X}, out={"y": NegatedForeign(np.zeros((2, 3), np.float32))})


class EarlyForeign(Foreign):
    """A tensor with the first version of DLPack, which has no flag for memory that must not be written."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


def test_outputs_in_tensors_of_an_early_dlpack(net: Any) -> None:
    """NumPy imports them read-only; the caller has named them as outputs. Others stay as they say."""
    out = np.zeros((2, 3), np.float32)
    outputs = net.run({"x": EarlyForeign(X.copy())}, out={"y": EarlyForeign(out)})
    assert np.array_equal(out, Y) and np.shares_memory(outputs["y"], out)
    out[:] = 0
    bound = net.bind({"x": X}, out={"y": EarlyForeign(out)})
    bound()
    assert np.array_equal(out, Y)
    out.flags.writeable = False
    with pytest.raises(kiln.KilnError, match=r"out\['y'\] must be contiguous and writeable"):
        net.run({"x": X}, out={"y": Foreign(out)})
    with pytest.raises(kiln.KilnError, match=r"out\['y'\] must be contiguous and writeable"):
        net.run({"x": X}, out={"y": EarlyForeign(np.zeros((3, 2), np.float32).T)})


def test_tensors_outlive_garbage_collection(net: Any) -> None:
    for _ in range(3):
        gc.collect()
        assert np.array_equal(net(X), Y)


def test_steps_are_timed(net: Any) -> None:
    steps = net.profile(X, runs=3)
    assert [(step.step, step.label) for step in steps] == [(0, "multiply"), (1, "add+square")]
    assert all(step.nanoseconds > 0 for step in steps)


def test_dynamic_shapes(dynamic: Any) -> None:
    assert {name: (dim.min, dim.max, dim.multiple) for name, dim in dynamic.dims.items()} == {
        "batch": (1, 2, 1),
        "width": (2, 16, 2),
    }
    assert dynamic.plan(batch=1, width=4).bucket == "batch1_width4"
    plan = dynamic.plan(*([(2, 14)] * len(dynamic.inputs)))
    assert (plan.bucket, plan.dims) == ("width12_16", {"batch": 2, "width": 14})
    with pytest.raises(RunError, match="width: 18, allowed") as raised:
        dynamic.plan(batch=1, width=18)
    assert (raised.value.status, raised.value.min, raised.value.max) == ("KILN_DIM_RANGE", 2, 16)
    with pytest.raises(
        kiln.KilnError, match="plan: no size of dimension 'width' is given; its dimensions are batch, width"
    ):
        dynamic.plan(batch=1)
    for wrong in (-1, 2.5, "2", None):
        with pytest.raises(kiln.KilnError, match=r"plan: width=.*: a whole number from 0 on is expected"):
            dynamic.plan(batch=1, width=wrong)  # type: ignore[arg-type]


def test_runs_of_alternating_shapes(dynamic: Any) -> None:
    """The C tensors of earlier shapes are used again, for other memory, also by several threads."""
    shapes = [(batch, width) for batch in (1, 2) for width in (4, 8, 16)]
    inputs = [np.random.default_rng(0).normal(size=(2, *shape)).astype("f4") for shape in shapes]
    expected = [dynamic.copy()(*arrays) for arrays in inputs]

    def equal(number: int) -> bool:
        return all(map(np.array_equal, dynamic(*inputs[number].copy()), expected[number]))

    order = [(7 * turn + turn // 3) % len(shapes) for turn in range(60)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(equal, order)) and all(pool.map(equal, order))
    with pytest.raises(RunError, match="x: float64, allowed float32"):
        dynamic(*inputs[0].astype("f8"))


def test_what_a_notebook_shows(dynamic: Any, tmp_path: Path) -> None:
    """A table of tensors and ranges, and the report where the bundle has one."""
    table = dynamic._repr_html_()
    for info in (*dynamic.inputs, *dynamic.outputs):
        shape = " × ".join(map(str, info.shape))
        assert f"<td>{info.name}</td><td>{info.dtype}</td><td>{shape}</td>" in table
    for name, size in dynamic.dims.items():
        assert f"<td>{name}</td><td></td><td>{size.min} to {size.max}</td>" in table
    (tmp_path / "report.html").write_text('<p class="a">')
    assert report_frame(tmp_path / "absent") == ""
    assert 'srcdoc="&lt;p class=&quot;a&quot;&gt;"' in report_frame(tmp_path)


def test_parameters_in_a_file_and_threads(make: Maker) -> None:
    bundle = bundle_of(make, "file")
    with kiln.load(bundle, threads=2) as threaded:
        twin = threaded.copy()
        results: list[Any] = []
        workers = [threading.Thread(target=lambda: results.append(threaded(X))) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(results) == 4
        assert all(np.array_equal(result, Y) for result in [*results, twin(X)])
    with pytest.raises(RunError, match="KILN_NOT_OPEN"):
        threaded(X)
    with pytest.raises(RunError, match="KILN_NO_VARIANT"):
        kiln.load(bundle, variant="none")
    with pytest.raises(kiln.KilnError, match="threads=65: allowed are 1 to 64, and 0"):
        kiln.load(bundle, threads=65)


def test_wrong_bundles(make: Maker, tmp_path: Path) -> None:
    with pytest.raises(
        kiln.KilnError, match=r"not a bundle: no manifest\.json; a bundle is build/TARGET/MODEL"
    ):
        kiln.load(tmp_path)
    bundle = bundle_of(make)
    manifest = (bundle / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(
        kiln.KilnError, match=r"libtiny\.so: no such file: target .* builds no shared library"
    ):
        kiln.load(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtiny.so").write_bytes(b"\x7fELF not for this machine")
    with pytest.raises(kiln.KilnError, match=r"libtiny\.so: cannot be loaded on this machine") as refused:
        kiln.load(tmp_path)
    assert "it is for target " in str(refused.value)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(kiln.KilnError, match=r"manifest\.json: not the manifest of a bundle"):
        kiln.load(tmp_path)


def test_nothing_but_numpy_is_imported(make: Maker) -> None:
    """A device that runs bundles from Python has NumPy, and none of the packages that a build needs."""
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("kiln", "numpy", *sys.stdlib_module_names) and path is None:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import kiln
print(kiln.load(sys.argv[1]).plan().steps)
"""
    bundle = bundle_of(make)
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle)],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "build_tools")},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("2\n", "")
