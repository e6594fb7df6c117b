"""Every key of a YAML file changes what some stage reads, or is refused where it would change nothing.

The keys are taken from the classes that read the files, so a new key fails here until it has its example in
EXAMPLES, and its refusals in IDLE or a reason in FACTS why there are none.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from kiln.config import canonical_json, load_model, load_target, stage_config
from kiln.config.model import Model
from kiln.config.target import Target
from kiln.device.deploy.registry import device_config, load_device
from kiln.errors import KilnError
from kiln.stages import SLICES
from pydantic import BaseModel

from .every_key import (
    BASE,
    EXAMPLES,
    FACTS,
    IDLE,
    IDLE_OF_DEVICES,
    IDLE_OF_TARGETS,
    MORE_IDLE,
    TARGETS,
)

# Keys of a model that the build itself reads, and no stage: kiln.scons.model_build, kiln.config.library.
OF_THE_BUILD = ("aliases", "source", "cut", "dims", "buckets", "variants", "byoc", "limits", "tolerance")


def sections(kind: Any) -> Iterator[type[BaseModel]]:
    """The classes of sections in a type."""
    if get_origin(kind) is None:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind
        return
    for part in get_args(kind):
        if not isinstance(part, str):
            yield from sections(part)


def keys_of(section: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> dict[str, Any]:
    """The type of each key by class and name, `Dim.min`, of a section and all below it.

    A key that only holds other sections is left out, as are names of files and the word that chooses a class.
    """
    seen = set() if seen is None else seen
    found: dict[str, Any] = {}
    if section in seen:
        return found
    seen.add(section)
    for name, field in section.model_fields.items():
        below = list(sections(field.annotation))
        owner = next(base for base in reversed(section.__mro__) if name in getattr(base, "model_fields", {}))
        words = get_args(field.annotation) if get_origin(field.annotation) is typing.Literal else ()
        title = owner.__name__.lstrip("_")
        if name != "name" and not (name == "kind" and len(words) == 1) and not below:
            found[f"{title}.{name}"] = field.annotation
        for kind in below:
            found |= keys_of(kind, seen)
    return found


def written(folder: Path, content: Mapping[str, Any], name: str = "net") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return path


def what_is_read(path: Path) -> dict[str, str]:
    """What stages and the build read of a model's file, as text, by the slice's or the key's name."""
    model = load_model(str(path))
    found = {name: canonical_json(stage_config(model, name)) for name in SLICES if name in _slices(model)}
    whole = model.model_dump(mode="json")
    return found | {f"key {key}": canonical_json(whole[key]) for key in OF_THE_BUILD}


def _slices(model: Model) -> list[str]:
    return [name for name, keys in SLICES.items() if set(keys) <= set(Model.model_fields)]


def test_every_key_of_a_model_has_its_example() -> None:
    keys = keys_of(Model)
    assert not keys.keys() - EXAMPLES.keys(), "a new key needs an example of what it changes"
    reasons = [prefix for prefixes in FACTS.values() for prefix in prefixes]
    silent = [
        key for key in keys if key not in IDLE and not any(key.startswith(reason) for reason in reasons)
    ]
    assert not silent, "where do these keys change nothing, and who says so?"
    idle = [reason for reason in reasons if not any(key.startswith(reason) for key in keys)]
    assert not idle
    known = {f"{kind}.{name}" for kind, name in _known()}
    assert not (EXAMPLES.keys() | IDLE.keys()) - known


def _known() -> Iterator[tuple[str, str]]:
    queue, seen = [Model], set[type[BaseModel]]()
    while queue:
        section = queue.pop()
        if section not in seen:
            seen.add(section)
            queue += [kind for field in section.model_fields.values() for kind in sections(field.annotation)]  # type: ignore[misc]
            yield from ((base.__name__.lstrip("_"), name) for base in section.__mro__
                        for name in getattr(base, "model_fields", {}))  # fmt: skip


@pytest.mark.parametrize("key", EXAMPLES)
def test_a_key_changes_what_is_read(key: str, tmp_path: Path) -> None:
    before, after = (what_is_read(written(tmp_path, {**BASE, **content})) for content in EXAMPLES[key])
    assert any(before[name] != after[name] for name in before), key


@pytest.mark.parametrize("key", [*IDLE, *MORE_IDLE])
def test_a_key_that_would_change_nothing_is_refused(key: str, tmp_path: Path) -> None:
    content, message = {**IDLE, **MORE_IDLE}[key]
    with pytest.raises(KilnError) as raised:
        load_model(str(written(tmp_path, {**BASE, **content})))
    assert message in str(raised.value)


@pytest.mark.parametrize("key", IDLE_OF_TARGETS)
def test_a_key_of_a_target_that_would_change_nothing_is_refused(key: str, tmp_path: Path) -> None:
    name, changed, message = IDLE_OF_TARGETS[key]
    given = yaml.safe_load((TARGETS / f"{name}.yaml").read_text())
    with pytest.raises(KilnError) as raised:
        load_target(str(written(tmp_path, {**given, **changed})))
    assert message in str(raised.value)


def test_stages_read_every_key_of_a_target() -> None:
    """The whole target is one file for all stages that depend on it."""
    assert set(load_target("x86_64").model_dump()) == set(Target.model_fields)


@pytest.mark.parametrize("kind", [{"kind": "gdb", "address": "localhost:3333"}, {"kind": "pyocd"}])
@pytest.mark.parametrize("key", IDLE_OF_DEVICES)
def test_a_device_without_files_has_no_keys_for_them(key: str, kind: dict[str, Any], tmp_path: Path) -> None:
    name = key.partition(".")[2]
    about = {"description": "", "target": "cortex_m4", "transport": kind}
    load_device(written(tmp_path, about, "board"))
    with pytest.raises(
        KilnError, match=f"key '{name}': only for devices with a file system; kind {kind['kind']}"
    ):
        load_device(written(tmp_path, {**about, name: IDLE_OF_DEVICES[key]}, "board"))
    here = written(tmp_path, {**about, "transport": {"kind": "local"}, name: IDLE_OF_DEVICES[key]}, "board")
    assert device_config(load_device(here))[name] == IDLE_OF_DEVICES[key]
