"""specialize as a stage: padding around a static graph, and special contents of an input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.__main__ import main
from kiln.config.boxes import STATIC_BOX, Box
from kiln.config.dims import Segment
from kiln.config.interface import Interface
from kiln.config.padding import PaddingProof, PaddingProofs
from kiln.config.slice_records import SpecializeConfig
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.lower.cases import cases_of
from kiln.params import store
from kiln.specialize.dispatch import leaves
from kiln.specialize.padding.wrap import pad_wrapped
from kiln.specialize.special_case import Equals, MultipleOf, special_case
from kiln.specialize.stage import specialize
from records import port
from relaxed import virtual_machine
from tvm import relax

BIAS = np.arange(4, dtype="float32")
INTERFACE = Interface(
    model="small",
    inputs=[port("x", ["seq", 4]), port("mask", ["seq"], "int32")],
    outputs=[port("sum", ["seq", 4]), port("half", [["//", "seq", 2], 4]), port("total", [4])],
)


def conditions(case: Any) -> Any:
    """The conditions of a special case as they stand in a file; None for the general case."""
    return None if case.when is None else case.when.model_dump()


def static() -> tvm.IRModule:
    """(x + BIAS, its maximum over two neighbours, the sum of x * mask) at 16."""
    x = relax.Var("x", relax.TensorType([16, 4], "float32"))
    mask = relax.Var("mask", relax.TensorType([16], "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask], attrs={"kiln.dims": "{}", "num_input": 2}):
        with builder.dataflow():
            added = builder.emit_output(relax.op.add(x, relax.const(BIAS)))
            pairs = builder.emit(relax.op.reshape(added, [8, 2, 4]))
            half = builder.emit_output(relax.op.max(pairs, 1))
            real = builder.emit(relax.op.expand_dims(builder.emit(relax.op.astype(mask, "float32")), 1))
            total = builder.emit_output(relax.op.sum(builder.emit(relax.op.multiply(x, real)), 0))
        builder.emit_func_output(relax.Tuple([added, half, total]))
    return builder.get()


def bucket(multiple: int = 1, least: int = 2) -> Box:
    segment = Segment(strategy="pad", min=least, max=16, multiple=multiple, size=16)
    return Box(name="seq_pad16", dims={"seq": segment})


def check(module: tvm.IRModule, sizes: tuple[int, ...], divide: int = 1) -> None:
    machine = virtual_machine(module)
    for size in sizes:
        x = np.random.default_rng(size).random((size, 4), "float32")
        extra = [] if divide == 1 else [tvm.runtime.ShapeTuple([size // divide])]
        ones = tvm.runtime.tensor(np.ones(size, "int32"))
        found = [part.numpy() for part in machine["main"](tvm.runtime.tensor(x), ones, *extra)]
        want = x + BIAS
        np.testing.assert_allclose(found[0], want)
        np.testing.assert_allclose(found[1], want[: size // 2 * 2].reshape(size // 2, 2, 4).max(1))
        np.testing.assert_allclose(found[2], x.sum(0), rtol=1e-5)


@pytest.mark.parametrize(("multiple", "sizes"), [(1, (2, 7, 16)), (2, (2, 6, 16))])
def test_every_size_of_the_bucket_is_served(multiple: int, sizes: tuple[int, ...]) -> None:
    # The mask hides x's padding: 9 would be seen in `total`.
    wrapped = pad_wrapped(static(), INTERFACE, bucket(multiple), {"x": 9.0, "mask": 0})
    check(wrapped, sizes, multiple)
    name = "seq" if multiple == 1 else "seq_div2"
    dims = json.loads(str(wrapped["main"].attrs["kiln.dims"]))
    assert dims == {name: {"dim": "seq", "divide": multiple, "min": 2 // multiple, "max": 16 // multiple}}


def test_an_output_that_does_not_fit_is_named() -> None:
    outputs = [INTERFACE.outputs[0], port("half", [["-", "seq", 2], 4]), INTERFACE.outputs[2]]
    wrong = INTERFACE.model_copy(update={"outputs": outputs})
    with pytest.raises(KilnError, match=r"output 'half' axis 0 is 8 .* seq - 2 gives 14"):
        pad_wrapped(static(), wrong, bucket())
    with pytest.raises(KilnError, match=r"inputs.mask.pad: 0.5, allowed for int32: whole numbers"):
        pad_wrapped(static(), INTERFACE, bucket(), {"mask": 0.5})


def test_stage_writes_a_module_for_padded_sizes_and_special_contents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.save(static(), tmp_path / "in")
    config = {
        "name": "small",
        "special_cases": [{"input": "mask", "value": "ones"}, {"input": "mask", "value": "zeros"}],
    }
    proof = PaddingProof(proof="graph", fill={"x": -7.5, "mask": 0})
    padding = PaddingProofs(buckets={"seq_pad16": proof}).model_dump()
    interface = INTERFACE.model_dump()
    files = {"config": config, "bucket": bucket().model_dump(), "interface": interface, "padding": padding}
    for name, value in files.items():
        write_json(tmp_path / f"{name}.json", value)
    command = ["specialize", "--in", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    command += ["--config", str(tmp_path / "config.json"), "--bucket", str(tmp_path / "bucket.json")]
    command += ["--padding", str(tmp_path / "padding.json")]
    assert main([*command, "--interface", str(tmp_path / "interface.json")]) == 0
    assert read_json(tmp_path / "out/interface.json") == interface
    loaded = store.load(tmp_path / "out")
    check(loaded, (2, 7, 16))
    assert len(store.split(loaded)[1]) == 1  # BIAS, although three functions read it
    cases = cases_of(loaded)
    assert [(case.name, conditions(case)) for case in cases] == [
        ("", None),
        ("mask_zeros", {"all": [{"input": 1, "value": "zeros"}]}),
    ]
    check(cases[0].module, (7,))
    # Padded, a mask of ones is a mask of ones and zeros: with it there is as much to do.
    printed = "small[seq_pad16]: special case 'mask is ones' saves no operator and no operand: dropped\n"
    assert capsys.readouterr().out == printed


def parsed(config: dict[str, Any]) -> SpecializeConfig:
    return SpecializeConfig.model_validate(config)


def test_without_padding_and_cases_the_module_is_handed_on() -> None:
    module = static()
    assert specialize(module, INTERFACE, STATIC_BOX, SpecializeConfig(name="small")) is module


def test_a_tensor_from_a_file_is_a_case_of_the_buckets_with_its_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.arange(16, dtype="int32"))
    value = {"kind": "file", "path": str(tmp_path / "mask.npy"), "sha256": None}
    config = {"name": "small", "special_cases": [{"input": "mask", "value": value}]}
    cases = cases_of(specialize(static(), INTERFACE, STATIC_BOX, parsed(config)))
    name = f"{cases[1].name}.mask"
    assert conditions(cases[1]) == {"all": [{"input": 1, "value": {"param": name}}]}
    np.testing.assert_array_equal(cases[1].constants[name], np.arange(16))
    assert len(cases_of(specialize(static(), INTERFACE, bucket(), parsed(config)))) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input": "msk", "value": "ones"}, "small: special_cases: no input 'msk', known: x, mask"),
        (
            {"input": "mask", "value": {"kind": "file", "path": "absent.npy"}},
            "absent.npy: cannot read: No such",
        ),
        (
            {"input": "mask", "value": {"kind": "file", "path": "wrong.npy"}},
            "a tensor of float64 with 1 axes",
        ),
        (
            {"input": "mask", "value": {"kind": "file", "path": "short.npy"}},
            r"tensor of int32 \[3\], but the input is int32 \[16\]",
        ),
    ],
)
def test_bad_special_cases_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.ones(16))
    np.save("short.npy", np.ones(3, "int32"))
    with pytest.raises(KilnError, match=says):
        specialize(
            static(),
            INTERFACE,
            STATIC_BOX,
            parsed({"name": "small", "special_cases": [given]}),
        )


@pytest.mark.slow
def test_contents_and_sizes_in_one_case() -> None:
    ones, few = {"input": "mask", "value": "ones"}, {"dim": "seq", "range": [2, 4]}
    entries = [
        {"all": [ones, {"dim": "seq", "exact": 6}]},
        {"all": [few, ones]},
        {"dim": "seq", "multiple": 8},
    ]
    entries.append({"all": [ones, {"dim": "seq", "exact": 17}]})  # never in this bucket
    config = {"name": "small", "dims": {"seq": {"min": 2, "max": 64}}, "special_cases": entries}
    cases = cases_of(specialize(static(), INTERFACE, bucket(), parsed(config)))
    content = {"input": 1, "value": "ones"}
    assert [conditions(case) for case in cases] == [
        None,
        {"all": [{"dim": "seq", "min": 6, "max": 6}, content]},
        {"all": [{"dim": "seq", "min": 2, "max": 4}, content]},
        {"all": [{"dim": "seq", "multiple": 8}]},
    ]
    for case, size in zip(cases, (7, 6, 3, 8), strict=True):
        check(case.module, (size,), 8 if size == 8 else 1)
    # Where the bucket has one size, that is known: the content alone is left to ask for, or nothing holds.
    fixed = Box(name="seq16", dims={"seq": Segment(strategy="exact", min=16, max=16, multiple=1, size=16)})
    config["special_cases"] = [{"all": [ones, {"dim": "seq", "exact": size}]} for size in (16, 17)]
    cases = cases_of(specialize(static(), INTERFACE, fixed, parsed(config)))
    assert [conditions(case) for case in cases] == [None, {"all": [content]}]


@pytest.mark.slow
def test_cases_of_a_dimension_with_a_multiple_take_its_parts() -> None:
    config = {"name": "small", "special_cases": [{"input": "mask", "value": "zeros"}]}
    module = specialize(static(), INTERFACE, bucket(2), parsed(config))
    check(module, (2, 6, 16), 2)
    check(cases_of(module)[0].module, (6,), 2)
    check(special_case(module, Equals("seq", 6)), (2, 6, 16), 2)
    assert special_case(module, Equals("seq", 7)) is module
    by_four = special_case(module, MultipleOf("seq", 4))
    check(by_four, (4, 6, 16), 2)
    names = [special.name for special in leaves(by_four)]
    assert names == ["seq_multiple_of_4_and_mask_zeros", "seq_multiple_of_4", "mask_zeros", ""]
    assert '"divide": 4' in str(leaves(by_four)[1].module["main"].attrs["kiln.dims"])


def test_constants_of_64_bits_keep_their_type() -> None:
    """ScatterND has int64 indices; they pass through a function for each case."""
    x = relax.Var("x", relax.TensorType([4, 3], "float32"))
    mask = relax.Var("mask", relax.TensorType([4, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask], attrs={"kiln.dims": "{}", "num_input": 2}):
        with builder.dataflow():
            masked = builder.emit(relax.op.multiply(x, mask))
            rows = relax.const(np.array([[0], [2]]), "int64")
            wide = relax.const(np.array([[1.0], [2.0]]), "float64")
            placed = builder.emit(relax.op.scatter_nd(masked, rows, relax.const(np.ones((2, 3), "float32"))))
            y = builder.emit_output(relax.op.add(relax.op.astype(placed, "float64"), relax.op.sum(wide)))
        builder.emit_func_output(y)
    ports = [port(name, [4, 3]) for name in ("x", "mask", "y")]
    interface = Interface(model="small", inputs=ports[:2], outputs=ports[2:])
    config = {"name": "small", "special_cases": [{"input": "mask", "value": "ones"}]}
    specialised = specialize(builder.get(), interface, STATIC_BOX, parsed(config))
    values = np.arange(12, dtype="float32").reshape(4, 3)
    want = values.astype("float64")
    want[[0, 2]] = 1
    for module in (specialised, *(case.module for case in cases_of(specialised))):
        machine = virtual_machine(module)
        given = [tvm.runtime.tensor(one) for one in (values, np.ones_like(values))]
        np.testing.assert_array_equal(machine["main"](*given).numpy(), want + 3)
