"""A device with trusted keys: only signed bundles are installed, and none of an older release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.trust.release import kept_in
from kiln.trust.sign import sign
from unit.trust.bundles import keys

from . import tiny
from .flashing import BuiltBundle, DeviceStages, build, write_manifest, yaml_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltBundle:
    """A bundle whose manifest has all entries that a signature covers."""
    target = tiny.base_target()
    bundle = build(tmp_path_factory.mktemp("bundle"), target)
    write_manifest(bundle.bundle, target, threads="none", source_sha256="cd" * 32, tools={"kiln": "0.1.0"})
    manifest = json.loads((bundle.bundle / "manifest.json").read_text())
    about = {"triple": target.triple, "cpu": target.cpu, "features": []}
    manifest["target"] = {**manifest["target"], **about}
    (bundle.bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def trusting(folder: Path, public: str) -> Path:
    """Write a device that trusts one key."""
    device = yaml_of(folder / "board.yaml", str(folder / "store"), kind="local")
    keys_of = {"trusted_keys": [Path(public).read_text()]}
    device.write_text(json.dumps({**json.loads(device.read_text()), **keys_of}))
    return device


@pytest.mark.heavy
def test_releases_on_a_device(built: BuiltBundle, tmp_path: Path) -> None:
    """Unsigned, changed, of another key, and back to an older release: refused, and nothing changes there."""
    private, public = keys(tmp_path, "one")
    stranger, _ = keys(tmp_path, "stranger")
    desk, current = DeviceStages(tmp_path, trusting(tmp_path, public)), tmp_path / "store/tiny/current"
    assert "not signed" in desk.refused(built) and not current.exists()
    sign(built.bundle, stranger, 1)
    assert "the signature is wrong, or of another key" in desk.refused(built)
    sign(built.bundle, private, 2)
    first = desk.flashed(built)
    assert (current / "trust/provenance.dsse.json").is_file() and first["changed"]
    header = built.bundle / "include/tiny.h"
    text = header.read_bytes()
    header.write_bytes(text + b"\n")
    assert "tiny.h: changed since the bundle was signed" in desk.refused(built)
    header.write_bytes(text)
    sign(built.bundle, private, 3)
    second = desk.flashed(built)
    assert json.loads((current / "installed.json").read_text())["greatest_release"] == 3
    with pytest.raises(KilnError, match="was signed as release 3"):
        sign(built.bundle, private, 2)
    shutil.rmtree(built.bundle / "trust")  # the older bundle as somebody else has kept it
    kept_in(built.bundle).unlink()
    sign(built.bundle, private, 2)
    assert "release 2 of 'tiny', at least 3 is required: an older bundle" in desk.refused(built)
    back = desk.installed("rollback")
    assert back.returncode == 2 and "is of release 2, at least 3 is required" in back.stderr
    assert current.resolve().name == second["version"]
    # What the device has had is remembered by every later bundle, also where its own release is the same.
    sign(built.bundle, private, 3)
    assert not desk.flashed(built)["changed"]


def test_a_damaged_note_is_no_way_around(built: BuiltBundle, tmp_path: Path) -> None:
    private, public = keys(tmp_path, "one")
    desk = DeviceStages(tmp_path, trusting(tmp_path, public))
    sign(built.bundle, private, 4)
    desk.flashed(built)
    note = (tmp_path / "store/tiny/current").resolve() / "installed.json"
    note.chmod(0o644)
    note.write_text("{}")
    assert "the greatest release there is not known" in desk.refused(built)
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


def test_a_device_without_keys_takes_every_bundle(built: BuiltBundle, tmp_path: Path) -> None:
    shutil.rmtree(built.bundle / "trust", ignore_errors=True)
    desk = DeviceStages(tmp_path, yaml_of(tmp_path / "board.yaml", str(tmp_path / "store"), kind="local"))
    assert desk.flashed(built)["changed"]
    wrong = yaml_of(tmp_path / "wrong.yaml", str(tmp_path / "store"), kind="local")
    wrong.write_text(json.dumps({**json.loads(wrong.read_text()), "trusted_keys": ["x"]}))
    from kiln.device.deploy.registry import load_device
    from kiln.errors import KilnError

    with pytest.raises(KilnError, match="a public key in PEM"):
        load_device(wrong)
