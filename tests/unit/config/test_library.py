"""Targets and models are found by name, alias or path; shipped ones are complete; loading is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kiln.config import (
    Model,
    Target,
    canonical_json,
    list_models,
    list_targets,
    load_model,
    load_target,
    stage_config,
    target_config,
)
from kiln.config import document as yaml_document
from kiln.config.library import identifier
from kiln.errors import KilnError
from kiln.paths import data_dir

TARGETS = sorted(path.stem for path in data_dir("targets").glob("*.yaml"))
MODELS = sorted(path.stem for path in data_dir("models").glob("*.yaml"))


@pytest.mark.parametrize("name", TARGETS)
def test_shipped_target_spells_every_key(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    written = yaml_document.read(data_dir("targets") / f"{name}.yaml").data
    assert {"name", *written} == set(Target.model_fields)
    assert "native" not in canonical_json(target_config(target))
    assert Target.model_validate(json.loads(canonical_json(target_config(target)))) == target


def test_a_target_without_libraries_reaches_the_stages(tmp_path: Path) -> None:
    content = yaml_document.read(data_dir("targets") / "armv7.yaml").data
    (tmp_path / "board.yaml").write_text(json.dumps({**content, "byoc": "none"}))
    target = load_target(str(tmp_path / "board.yaml"))
    assert Target.model_validate(json.loads(canonical_json(target_config(target)))) == target


@pytest.mark.parametrize("name", MODELS)
def test_shipped_model_is_complete(name: str) -> None:
    model = load_model(name)
    assert model.description
    assert model.licence
    assert model.source.sha256
    # With dimensions every set is tried at many sizes.
    assert len(model.golden.inputs) == (2 if model.dims else 3) or model.preprocess
    # one of them real data, where the model has a natural one
    assert model.preprocess is None or any(entry.kind == "image" for entry in model.golden.inputs)
    assert all(
        isinstance(size, int) or size in model.dims
        for tensor in model.inputs.values()
        for size in tensor.shape or []
    )
    assert Model.model_validate(json.loads(model.model_dump_json())) == model


def test_shipped_files_name_their_schema() -> None:
    for kind in ("target", "model"):
        for path in data_dir(f"{kind}s").glob("*.yaml"):
            first = path.read_text(encoding="utf-8").splitlines()[0]
            assert first == f"# yaml-language-server: $schema=../build/schema/{kind}.schema.json"


def test_lists_name_every_file() -> None:
    assert [entry.name for entry in list_targets()] == TARGETS
    assert [entry.name for entry in list_models()] == MODELS
    assert all(entry.description for entry in [*list_targets(), *list_models()])


def test_alias() -> None:
    assert load_model("mobilenet").name == "mobilenet_v2"
    assert "mobilenet" in {alias for entry in list_models() for alias in entry.aliases}


def test_unknown_names_say_the_nearest_and_all() -> None:
    with pytest.raises(
        KilnError, match=r"unknown target 'arch64'; did you mean 'aarch64'\? known: .*armv7"
    ) as target:
        load_target("arch64")
    with pytest.raises(KilnError, match="unknown target 'amd64'; did you mean 'x86_64'"):
        load_target("amd64")
    with pytest.raises(
        KilnError, match=r"unknown model 'resnet5'; did you mean 'resnet(50)?'\? known: .*mobilenet,"
    ):
        load_model("resnet5")
    assert ".yaml file" in str(target.value)


@pytest.mark.parametrize("path", ["nowhere/x.yaml", "nowhere/x.onnx", "nowhere/x.tflite"])
def test_missing_path(path: str) -> None:
    with pytest.raises(KilnError, match=rf"model '{path}': no such file"):
        load_model(path)


def test_a_name_is_as_long_as_an_archive_can_have(tmp_path: Path) -> None:
    """The bundle's longest name is NAMEConfigVersion.cmake, of at most 100 characters in an archive."""
    right, wrong = "a" * 81, "a" * 82
    for name in (right, wrong):
        (tmp_path / f"{name}.onnx").touch()
        (tmp_path / f"{name}.yaml").write_text("source: {kind: file, path: net.onnx}")
    assert {load_model(str(tmp_path / f"{right}{suffix}")).name for suffix in (".onnx", ".yaml")} == {right}
    for suffix in (".onnx", ".yaml"):
        with pytest.raises(KilnError, match="a name of 82 characters, at most 81 are allowed: rename the"):
            load_model(str(tmp_path / f"{wrong}{suffix}"))


def test_bare_model_file(tmp_path: Path) -> None:
    path = tmp_path / "My-Net v2.onnx"
    path.write_bytes(b"anything")
    model = load_model(path)
    assert (model.name, model.format, model.source.kind) == ("my_net_v2", "onnx", "file")
    assert stage_config(model, "fetch")["source"]["path"] == str(path)


def test_control_characters_in_the_path_of_a_model_file(tmp_path: Path) -> None:
    for name in ("a\nb.onnx", "a\tb.tflite", "folder\x7f/a.pt2", "a\u2028b.onnx"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with pytest.raises(KilnError, match=r"control characters in the path '/.*'; rename the file or fold"):
            load_model(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A b", "a_b"),
        ("9net", "m_9net"),
        ("é", "model"),
        ("a__b", "a_b"),
        ("int", "m_int"),
        ("main", "m_main"),
        ("kiln_a", "m_kiln_a"),
    ],
)
def test_identifier(text: str, name: str) -> None:
    assert identifier(text) == name


def test_own_files_come_before_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "targets").mkdir()
    (tmp_path / "models").mkdir()
    shipped = (data_dir("targets") / "armv7.yaml").read_text(encoding="utf-8")
    (tmp_path / "targets" / "board.yaml").write_text(
        shipped.replace("cores: 2", "cores: 3"), encoding="utf-8"
    )
    (tmp_path / "models" / "mine.yaml").write_text(
        "source: {kind: file, path: net.tflite}\n", encoding="utf-8"
    )
    (tmp_path / "models" / "broken.yaml").write_text("a: [", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_target("board").cores == 3
    assert load_target("armv7").cores == 2
    mine = load_model("mine")
    assert mine.format == "tflite"
    assert stage_config(mine, "fetch")["source"]["path"] == str(tmp_path / "models" / "net.tflite")
    broken = next(entry for entry in list_models() if entry.name == "broken")
    assert broken.description.startswith("cannot be used: models/broken.yaml:")
    with pytest.raises(KilnError, match=r"^models/broken.yaml:\d: not valid YAML"):
        load_model("broken")


def test_loading_imports_no_compiler() -> None:
    program = (
        "import sys; from kiln.config import *; load_target('aarch64'); load_model('resnet'); list_models();"
        "print([m for m in ('tvm', 'onnx', 'numpy', 'PIL', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_name_in_other_letters_is_found() -> None:
    with pytest.raises(KilnError, match=r"^unknown target 'AARCH64'; did you mean 'aarch64'\?"):
        load_target("AARCH64")
