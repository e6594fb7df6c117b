"""Operators of the user's own: an error in their files is one line that names file and operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line import __main__ as command_line
from kiln.config import load_target
from kiln.emit.own_functions import compile_own
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import ExternalCode
from kiln.operators.c_body import PREFIX
from kiln.operators.registry import operators
from onnx import TensorProto, helper
from tvm import relax

HEAD = "import numpy as np\nfrom kiln.operators import OwnOperator, OwnTensor\nfrom tvm.relax import op\n"
RELAX = "relax=lambda x: op.abs(x)"
C = 'c="mine.c", arguments=lambda x, y: [x.elements]'
GOOD = "void mine(const float *x, float *y, int n) { for (int i = 0; i < n; i++) y[i] = x[i] + 1; }\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder `operators` below the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operators").mkdir()
    return tmp_path / "operators"


def declare(
    folder: Path, body: str, *, result: str = "lambda x: x", more: str = "", name: str = "Mine"
) -> None:
    reference = "" if "reference" in more else "reference=lambda *given, **more: given[0],"
    text = (
        f"OPERATOR = OwnOperator(name='{name}', domain='own', result={result}, {reference} {more} {body})\n"
    )
    (folder / "mine.py").write_text(HEAD + text, encoding="utf-8")
    (folder / "mine.c").write_text(GOOD, encoding="utf-8")


def model(
    path: Path, op: str = "Mine", domain: str = "own", inputs: int = 1, outputs: int = 1, **attributes: Any
) -> Path:
    names = [f"x{index}" for index in range(inputs)]
    made = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, made, "a_node", domain=domain, **attributes)
    given_names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in names]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b"]) for name in made]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    graph = helper.make_graph([node], "net", given_names, results)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def refused(folder: Path, **given: Any) -> str:
    """The error of the import of a model with one node."""
    with pytest.raises(KilnError) as error:
        import_model(model(folder.parent / "net.onnx", **given), ImportOptions("net"))
    assert "\n" not in str(error.value)
    return str(error.value)


DECLARATIONS = {
    "no operator": ("OPERATOR = 3\n", "operators/mine.py: it must define OPERATOR, an OwnOperator"),
    "an exception": ("1 / 0\n", "operators/mine.py: ZeroDivisionError: division by zero"),
    "no reference": (
        "OPERATOR = OwnOperator(name='Mine', result=lambda x: x, relax=op.abs)\n",
        "operators/mine.py: TypeError: .*missing 1 required keyword-only argument: 'reference'",
    ),
}


@pytest.mark.parametrize(("text", "line"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_file_without_an_operator(folder: Path, text: str, line: str) -> None:
    (folder / "mine.py").write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(KilnError, match=line):
        operators()


BODIES = {
    "none": ({}, "", "one body expected, relax, tir or c: it has none"),
    "two": ({}, f"{RELAX}, {C}", "one body expected, relax, tir or c: it has relax and c"),
    "reference": ({"more": "reference=3,"}, RELAX, "reference must be a function"),
    "arity": ({"more": "reference=lambda x, y: x,"}, RELAX,
              r"reference\(x, y\) cannot be called with 1 tensors"),
    "attribute": ({"more": "attributes={'a': {}},"}, RELAX, "attribute 'a' is {}, allowed: a default"),
    "no arguments": ({}, 'c="mine.c"', "a body in C needs 'arguments'"),
    "scratch": ({"more": "scratch=4,"}, RELAX, "'scratch' is for a body in C, and this one is relax"),
    "no file": ({}, C.replace("mine.c", "gone.c"), "operators/gone.c: no such file"),
    "a path": ({}, C.replace("mine.c", "../mine.c"), "allowed: the name of a C file in operators/"),
    "a name": ({}, C + ", function='for'", "'for' cannot name a C function"),
    "many": ({"result": "lambda *x: x[0]"}, RELAX, r"relax\(x\) cannot|relax must take any number of inputs"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "body", "line"), BODIES.values(), ids=BODIES)
def test_a_declaration_that_is_not_complete(
    folder: Path, given: dict[str, str], body: str, line: str
) -> None:
    declare(folder, body, **given)
    with pytest.raises(KilnError, match=f"^operators/mine.py: operator 'Mine': .*{line}") as error:
        operators()
    assert "\n" not in str(error.value)


def test_a_c_file_that_includes_another(folder: Path) -> None:
    declare(folder, C)
    (folder / "mine.c").write_text('#include "other.h"\n' + GOOD)
    with pytest.raises(KilnError, match='it includes "other\\.h"; a body is one file'):
        operators()


NODES = {
    "inputs": ({}, {"inputs": 2}, "the model gives it 2 inputs, its shape rule takes 1"),
    "outputs": ({}, {"outputs": 2}, "result returns 1 outputs, the model uses 2"),
    "unknown attribute": ({}, {"beta": 1}, "the model gives an attribute 'beta', declared: none"),
    "missing attribute": (
        {"more": "attributes={'k': [int]},", "result": "lambda x, k: x", "body": "relax=lambda x, k: x"},
        {}, "the model gives no attribute 'k', which has no default",
    ),
    "wrong attribute": (
        {"more": "attributes={'k': [int]},", "result": "lambda x, k: x", "body": "relax=lambda x, k: x"},
        {"k": 3.5}, r"attribute 'k' of the model is 3.5, declared: \[int\]",
    ),
    "negative": ({"result": "lambda x: OwnTensor((-1,))"}, {}, "output 0 has a size -1 at axis 0, least: 1"),
    "a text": ({"result": "lambda x: OwnTensor(('a',))"}, {}, "output 0 has a size 'a' at axis 0, allowed"),
    "a fraction": ({"result": "lambda x: OwnTensor((1.5,))"}, {}, "output 0 has a size 1.5 at axis 0"),
    "no tensor": ({"result": "lambda x: 4"}, {}, "result returns 4, allowed: OwnTensor, or a tuple"),
    "a type": ({"result": "lambda x: OwnTensor((1,), 'f')"}, {}, "output 0 is of type 'f', allowed: bool"),
    "an exception": ({"result": "lambda x: x.rank"}, {}, "result, its shape rule, ended with AttributeError"),
    "another shape": ({"result": "lambda x: OwnTensor((6,))"}, {}, r"relax: output 0 is float32\[2, 3\]"),
    "no function": ({"body": "tir=lambda x: 3"}, {}, "tir returns int, allowed: a PrimFunc of TIR"),
    "arguments": ({"body": 'c="mine.c", arguments=lambda x, y: [{}]'}, {}, "arguments returns {}, allowed"),
    "scratch": ({"body": C + ", scratch=-1"}, {}, "scratch is -1, allowed: a number of bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "node", "line"), NODES.values(), ids=NODES)
def test_a_node_that_does_not_fit(
    folder: Path, given: dict[str, str], node: dict[str, Any], line: str
) -> None:
    given = {"body": RELAX, **given}
    declare(folder, given.pop("body"), **given)
    text = refused(folder, **node)
    assert "net.onnx" in text and re.search(f"operators/mine.py: operator 'Mine': .*{line}", text), text


def test_a_name_of_kilns_is_replaced_only_where_the_file_says_so(folder: Path) -> None:
    declare(folder, RELAX, name="Relu", more="replaces=False,")
    (folder / "mine.py").write_text((folder / "mine.py").read_text().replace("'own'", "''"))
    text = refused(folder, op="Relu", domain="")
    assert (
        "operators/mine.py: operator 'Relu': Kiln has an operator 'Relu' of ONNX: set replaces=True" in text
    )
    (folder / "mine.py").write_text((folder / "mine.py").read_text().replace("=False", "=True"))
    module, _ = import_model(model(folder.parent / "net.onnx", "Relu", ""), ImportOptions("net"))
    calls = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    assert [str(call.op.name) for call in calls if isinstance(call, relax.Call)] == ["relax.abs"]


def test_an_operator_that_nobody_declared(folder: Path) -> None:
    assert refused(folder).endswith(
        "own.Mine (node a_node); an operator of your own can compute it (docs/own-operator.md)"
    )


def test_two_files_of_one_name(folder: Path) -> None:
    declare(folder, RELAX)
    (folder / "same.py").write_text((folder / "mine.py").read_text())
    with pytest.raises(
        KilnError, match=r"same\.py: operator 'Mine': operators/mine\.py declares an operator of"
    ):
        operators()


def test_the_list_of_operators(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["list", "operators"]) == 0
    declare(folder, RELAX, more="description='more or less',")
    assert command_line.main(["list", "operators"]) == 0
    none = "no operators of your own: there are none in ./operators (docs/own-operator.md)\n"
    assert capsys.readouterr().out == f"{none}own.Mine  more or less, operators/mine.py\n"


REFERENCES = {
    "an exception": ("lambda x: x.gone", "reference ended with AttributeError"),
    "no array": ("lambda x: 'text'", "reference returns str, allowed: NumPy arrays"),
    "another type": (
        "lambda x: x.astype('float64')",
        r"reference: output 0 is float64\[2, 3\], its declared result is float32\[2, 3\]",
    ),
    "another shape": (
        "lambda x: x.sum(0)",
        r"reference: output 0 is float32\[3\], its declared result is float32\[2, 3\]",
    ),
    "another rank": ("lambda x: x[0, 0]", r"reference: output 0 is float32\[\], its declared result is"),
    "other outputs": ("lambda x: (x, x)", "reference returns 2 outputs, result declares 1"),
}


@pytest.mark.parametrize(("reference", "line"), REFERENCES.values(), ids=REFERENCES)
def test_a_reference_that_fails(folder: Path, reference: str, line: str) -> None:
    declare(folder, RELAX, more=f"reference={reference},")
    path = model(folder.parent / "net.onnx")
    with pytest.raises(KilnError, match=f"operators/mine.py: operator 'Mine': {line}"):
        open_reference(path).run([onnx.numpy_helper.to_array(helper.make_tensor("", 1, [2, 3], [1.0] * 6))])


def test_a_reference_whose_result_depends_on_elements(folder: Path) -> None:
    """Elements of constants may decide the shape, and a rule may ask for them."""
    shape = "(int(x.value[0, 0]), 3)"
    for result in (
        f"lambda x: OwnTensor({shape})",
        f"lambda x: x if x.value is None else OwnTensor({shape})",
    ):
        declare(folder, RELAX, result=result, more="reference=lambda x: x[:int(x[0, 0])],")
        path = model(folder.parent / "net.onnx")
        (output,) = open_reference(path).run([np.ones((2, 3), "float32")])
        assert output.shape == (1, 3)


FUNCTIONS = {
    "missing": ("void other(void);\n", "it defines no function 'mine', expected: void mine"),
    "parameters": (
        "void mine(float *y) { y[0] = 1; }\n",
        "function 'mine' is declared in another way, expected",
    ),
    "result": (
        GOOD.replace("void", "int"),
        "function 'mine' is declared in another way, expected: void mine",
    ),
    "a library": (
        "float expf(float);\n" + GOOD.replace("x[i] + 1", "expf(x[i])"),
        "it calls expf, which a device without a C library lacks; allowed: memcpy",
    ),
    "a global": ("int helper(int a) { return a; }\n" + GOOD, "function 'helper' must be static"),
    "a mistake": (GOOD.replace("i++", "i+"), "operators/mine.c:1:"),
}


@pytest.mark.parametrize(("text", "line"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_c_file_that_does_not_fit(folder: Path, tmp_path: Path, text: str, line: str) -> None:
    declare(folder, C)
    (folder / "mine.c").write_text(text)
    module, _ = import_model(model(tmp_path / "net.onnx"), ImportOptions("net"))
    target = load_target("x86_64").for_variant("v3")
    (kernel,) = [k for k in lower(module, Lowering("net", target, "none")).kernels if k.external is not None]
    assert isinstance(kernel.external, ExternalCode)
    with pytest.raises(KilnError) as error:
        compile_own(kernel.symbol, kernel.external, target, tmp_path)
    assert str(error.value).startswith("operators/mine.c:") and line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_body_in_c_is_one_call_with_what_is_constant(folder: Path) -> None:
    declare(folder, C)
    module, _ = import_model(model(folder.parent / "net.onnx"), ImportOptions("net"))
    (block,) = module["main"].body.blocks
    assert str(block.bindings[0].value.args[0].global_symbol).startswith(PREFIX)
    with pytest.raises(KilnError, match=r"operator 'Mine' is C for a CPU .operators/mine\.c., the target's"):
        lower(module, Lowering("net", load_target("cuda"), "none"))
