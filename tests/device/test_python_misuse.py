"""kiln.load: each wrong argument is one clear KilnError, never an exception of Python's or NumPy's own."""

from __future__ import annotations

import platform
import re
from typing import Any

import kiln
import numpy as np
import pytest
from kiln.runtime.arrays import as_array
from kiln.runtime.library import RunError

from .conftest import Maker
from .test_python_module import X, bundle_of

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)
NATIVE = ": allowed are native bool, integer and float types; float32 is expected"


class Failing:
    """A value whose conversion to an array fails in words of its own."""

    def __array__(self, *given: Any, **options: Any) -> Any:
        raise RuntimeError("fails")


@pytest.fixture(scope="module")
def net(make: Maker) -> kiln.runtime.Network:
    return kiln.load(bundle_of(make))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X[:, :2],), "KILN_BAD_SHAPE: x axis 1: 2, allowed 3"),
        ((X.astype(np.float64),), "KILN_BAD_DTYPE: x: float64, allowed float32"),
        ((X[0],), "KILN_BAD_RANK: x: rank 1, allowed 2"),
        ((), "tiny: 0 inputs; the inputs are x"),
        ((X, X), "tiny: 2 inputs; the inputs are x"),
        (("text",), "input 'x' of type str: numbers are expected"),
        (([["1", 2, 3]],), "input 'x' of type list: numbers are expected"),
        (([[None, 2, 3]],), "input 'x' of type list: numbers are expected"),
        (([[1j, 2, 3]],), "input 'x' of type list: real numbers are expected"),
        (([[1e300, 2, 3]],), "input 'x' of type list: 1e+300 is not a number of type float32"),
        ((np.datetime64("2020"),), "input 'x' of type datetime64: numbers are expected"),
        ((X.astype("U3"),), f"input 'x': an array of dtype <U3{NATIVE}"),
        ((X.astype(">f4"),), f"input 'x': an array of dtype >f4{NATIVE}"),
        ((None,), "input 'x' of type NoneType: numbers are expected"),
        (
            (object(),),
            "input 'x' of type object: float() argument must be a string or a real number, not 'object'",
        ),
        ((Failing(),), "input 'x' of type Failing: fails"),
        (
            (np.ma.masked_array(X, X > 1),),
            "input 'x': a masked array; give the masked elements values first: array.filled(0)",
        ),
    ],
)
def test_wrong_inputs(net: Any, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(kiln.KilnError) as raised:
        net(*inputs)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("value", "dtype", "fault"),
    [
        ([1.7], "int8", "1.7"),
        ([1, float("nan")], "int32", "nan"),
        ([np.array([300, 1])], "int8", "300"),
        ([-1], "uint8", "-1"),
        (memoryview(np.array([1, 400])), "int8", "400"),
        ([0, 2], "bool", "2"),
        ([70000], "float16", "70000"),
    ],
)
def test_numbers_of_lists_keep_their_values(value: Any, dtype: str, fault: str) -> None:
    """NumPy would make other numbers of these without a word; what the type has is taken."""
    with pytest.raises(kiln.KilnError, match=f": {re.escape(fault)} is not a number of type {dtype}"):
        as_array(value, np.dtype(dtype))
    assert as_array([1.0, 0], np.dtype(dtype)).tolist() == [1, 0]


def test_wrong_names_and_outputs(net: Any) -> None:
    with pytest.raises(kiln.KilnError, match="tiny: no free input 'z'; the inputs are x"):
        net(z=X)
    with pytest.raises(kiln.KilnError, match="tiny: no output 'z'; the outputs are y"):
        net.run({"x": X}, out={"z": X})
    with pytest.raises(kiln.KilnError, match=r"tiny: out\['y'\] must be contiguous and writeable"):
        net.run({"x": X}, out={"y": np.zeros((3, 2), np.float32).T})
    with pytest.raises(RunError, match="KILN_BAD_SHAPE: y axis 0: 3, allowed 2"):
        net.run({"x": X}, out={"y": np.zeros((3, 3), np.float32)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: net.plan("ab"), "plan: x: 'ab' is not a shape"),
        (lambda net: net.plan(3), "plan: x: 3 is not a shape"),
        (lambda net: net.plan((2, -3)), r"plan: x: \(2, -3\) is not a shape"),
        (lambda net: net.plan((2, 3.5)), r"plan: x: \(2, 3.5\) is not a shape"),
        (lambda net: net.plan((2, 2**64)), r"plan: x: .* is not a shape"),
        (lambda net: net.plan((2**40, 2**40)), r"plan: x: \(1099511627776, 1099511627776\): "),
        (lambda net: net.profile(X, runs=0), "profile: runs=0: at least 1 is required"),
        (lambda net: net.run([X]), "run: inputs of type list, a dictionary by name is expected"),
        (lambda net: net.bind([X]), "bind: inputs of type list, a dictionary by name is expected"),
        (lambda net: net.run({"x": X}, out=[X]), "tiny: out of type list, a dictionary by name is expected"),
        (lambda net: net.run({1: X, "z": X}), "tiny: no free input '1'; the inputs are x"),
        (lambda net: net.run({"x": X}, out={1: X, "z": X}), "tiny: no output '1'; the outputs are y"),
        (lambda net: net.run({"x": X}, out={"y": [[0.0] * 3] * 2}), "output 'y' of type list: an array or"),
        (lambda net: net([[1, 2], [3]]), "input 'x' of type list: "),
        (lambda _: kiln.load(None), "load: bundle of type NoneType: a path is expected, such as build/host"),
        (lambda _: kiln.load(5), "load: bundle of type int: a path is expected, such as build/host/resnet"),
        (lambda _: kiln.load(b"x"), "load: bundle b'x': a path is expected, such as build/host/resnet"),
        (
            lambda net: kiln.load(net._library.folder, variant=5),
            "variant=5: the name of a variant is expected",
        ),
        (lambda net: kiln.load(net._library.folder, threads=1.5), "threads=1.5: allowed are 1 to 64"),
        (lambda net: kiln.load(net._library.folder, threads="2"), "threads='2': allowed are 1 to 64"),
        (lambda net: net.plan(rows=1, cows=1), "plan: the model has no dimension 'cows'; "),
        (lambda net: kiln.load(net._library.folder, gpu=1), "gpu=1: .* runs on the processor, not on a GPU"),
        (lambda net: kiln.load(net._library.folder / "manifest.json"), "manifest.json: not a bundle"),
    ],
)
def test_wrong_use(net: Any, call: Any, message: str) -> None:
    with pytest.raises(kiln.KilnError, match=message):
        call(net)


def test_wrong_paths_of_traffic_files(make: Maker) -> None:
    net = kiln.load(bundle_of(make), contents=True)
    for path, shown in ((None, "of type NoneType"), (b"x", "b'x'"), ("a\0b", r"'a\x00b'")):
        with pytest.raises(kiln.KilnError) as raised:
            net.write_traffic(path)  # type: ignore[arg-type]
        assert str(raised.value) == f"write_traffic: path {shown}: a path is expected, such as traffic.csv"
