"""The commands for finished bundles and images: sign, verify, sbom, publish, fetch."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from kiln.command_line.answer import AnswerPart, Reply
from kiln.command_line.outputs import writable_folder
from kiln.errors import KilnError
from kiln.manifest import read_manifest
from kiln.trust import PROVENANCE
from kiln.trust.image import SignedImage, sign_image, verify_image
from kiln.trust.sbom import CYCLONEDX, SPDX, materials, write_sboms
from kiln.trust.sign import sign
from kiln.trust.verify import verify

IMAGE = ".img"  # end of the name of an image's file


def signed(arguments: Namespace) -> Reply:
    """Sign a bundle, or an image."""
    folder = Path(arguments.bundle)
    if not folder.is_dir() and folder.suffix == IMAGE:
        image = sign_image(folder, arguments.key, arguments.release)
        text = f"{folder}: signed as version {image.release} with key {image.key[:16]}…"
        return Reply(_image_part("sign", folder, image), lambda: print(text))
    bundle = sign(folder, arguments.key, arguments.release)
    files = {"provenance": PROVENANCE, "cyclonedx": CYCLONEDX, "spdx": SPDX}
    part = _bundle_part("sign", folder, files, {"release": bundle.release, "key": bundle.key})
    return Reply(
        part, lambda: print(f"{folder}: signed as release {bundle.release} with key {bundle.key[:16]}…")
    )


def verified(arguments: Namespace) -> Reply:
    """Verify a bundle, or an image."""
    from kiln.trust.keys import public_key_of

    folder = Path(arguments.bundle)
    if not folder.is_dir() and folder.suffix == IMAGE:
        image = verify_image(folder, [public_key_of(key) for key in arguments.key], arguments.least)
        text = f"{folder}: as signed with key {image.key[:16]}…, version {image.release}"
        return Reply(_image_part("verify", folder, image), lambda: print(text))
    read_manifest(folder)
    bundle = verify(folder, [public_key_of(key) for key in arguments.key], arguments.least)
    text = f"{folder}: {bundle.files} files as signed with key {bundle.key[:16]}…, release {bundle.release}"
    return Reply(_bundle_part("verify", folder, {}, asdict(bundle)), lambda: print(text))


def listed(arguments: Namespace) -> Reply:
    """Write the bills of materials of a bundle. A signed bundle has them already; they stay as signed."""
    folder = Path(arguments.bundle)
    manifest = read_manifest(folder)
    if not (folder / PROVENANCE).is_file():
        write_sboms(folder, manifest)
    components = [
        {
            "kind": material.kind,
            "name": material.name,
            "version": material.version,
            "licence": material.licence,
            "tool": material.tool,
        }
        for material in materials(folder, manifest)
    ]
    part = _bundle_part("sbom", folder, {"cyclonedx": CYCLONEDX, "spdx": SPDX}, {"components": components})
    return Reply(part, lambda: print("\n".join(str(folder / name) for name in (CYCLONEDX, SPDX))))


def published(arguments: Namespace) -> Reply:
    """Add a bundle to a repository, renew the repository, or change its key."""
    from kiln.trust.repository import publish
    from kiln.trust.rotate import change_key

    bundle = None if arguments.bundle is None else Path(arguments.bundle)
    writable_folder("repository", Path(arguments.repository))
    if bundle is not None:
        read_manifest(bundle)
    if arguments.replaces is None:
        repository = publish(Path(arguments.repository), arguments.key, bundle, arguments.days)
    elif bundle is None:
        repository = change_key(Path(arguments.repository), arguments.key, arguments.replaces, arguments.days)
    else:
        raise KilnError("publish: --replaces changes the key alone; publish the bundle in a second command")
    part = AnswerPart(goal="publish", data={"version": repository.version, "bundles": repository.bundles})
    count = f"{len(repository.bundles)} bundle{'' if len(repository.bundles) == 1 else 's'}"
    text = f"{repository.repository}: version {repository.version}, valid for {arguments.days} days: {count}"
    return Reply(part, lambda: print(text))


def fetched(arguments: Namespace) -> Reply:
    """Fetch a bundle from a repository."""
    from kiln.trust.fetch import fetch

    root = None if arguments.root is None else Path(arguments.root)
    writable_folder("into", Path(arguments.into))
    bundle = fetch(arguments.url, arguments.model, arguments.target, Path(arguments.into), root)
    text = f"{bundle.folder}: fetched and verified, release {bundle.release}, key {bundle.key[:16]}…"
    data = {"release": bundle.release, "key": bundle.key}
    return Reply(_bundle_part("fetch", bundle.folder, {}, data), lambda: print(text))


def _image_part(goal: str, path: Path, image: SignedImage) -> AnswerPart:
    """The result of `goal` for an image; its folder is named after the target."""
    files = {"image": str(path)}
    return AnswerPart(goal=goal, model=image.model, target=path.parent.name, files=files, data=asdict(image))


def _bundle_part(goal: str, folder: Path, files: dict[str, str], data: object) -> AnswerPart:
    """The result of `goal` for the bundle in `folder`; `files` are names in it, by purpose."""
    manifest = read_manifest(folder)
    paths = {purpose: str(folder / name) for purpose, name in files.items()}
    return AnswerPart(
        goal=goal, model=manifest["name"], target=manifest["target"]["name"], files=paths, data=data
    )
