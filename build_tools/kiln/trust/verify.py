"""Verify a bundle: its signature, every file, and its release."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.trust import PROVENANCE
from kiln.trust.keys import libraries
from kiln.trust.statement import BUILD_TYPE, PAYLOAD, PREDICATE, STATEMENT, digests


@dataclass(frozen=True)
class VerifiedBundle:
    """A bundle whose files all agree with its signed statement, and the values of that statement."""

    model: str
    target: str
    release: int
    files: int
    key: str


def verify(bundle: Path, keys: Sequence[Any], least: int = 0) -> VerifiedBundle:
    """Verify the bundle in the folder `bundle`, which one of the public keys must have signed.

    Raises KilnError for a missing or wrong signature, a changed, missing or additional file, and a release
    below `least`.
    """
    content, signer = _statement(bundle, keys)
    try:
        definition = content["predicate"]["buildDefinition"]
        parameters = definition["externalParameters"]
        signed = {subject["name"]: subject["digest"]["sha256"] for subject in content["subject"]}
        model, target, release = str(parameters["model"]), str(parameters["target"]), parameters["release"]
        kinds = content["_type"], content["predicateType"], definition["buildType"]
    except (KeyError, TypeError) as error:
        raise KilnError(f"{bundle / PROVENANCE}: not the statement of a bundle: {error} is missing") from None
    if kinds != (STATEMENT, PREDICATE, BUILD_TYPE) or not isinstance(release, int):
        raise KilnError(f"{bundle / PROVENANCE}: a statement about something else than a bundle")
    _compare(bundle, signed)
    if release < least:
        raise KilnError(f"{bundle}: release {release}, at least {least} is required: an older bundle")
    return VerifiedBundle(model, target, release, len(signed), signer)


def _statement(bundle: Path, keys: Sequence[Any]) -> tuple[Mapping[str, Any], str]:
    """The statement, and the id of the key that signed it."""
    _, _, dsse = libraries()
    path = bundle / PROVENANCE
    if path.exists() and not path.is_file():  # a pipe would be read for ever
        raise KilnError(f"{path}: not a file")
    try:
        envelope = dsse.Envelope.from_dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise KilnError(f"{bundle}: not signed: it has no {PROVENANCE}; kiln sign signs it") from None
    except Exception:  # json's, and KeyError, TypeError, ValueError of the library
        raise KilnError(f"{path}: damaged: not a DSSE envelope") from None
    try:
        accepted = envelope.verify(list(keys), 1)
        content = json.loads(envelope.payload)
    except Exception:  # VerificationError, and json's for a payload that is none
        raise KilnError(f"{path}: the signature is wrong, or of another key") from None
    if envelope.payload_type != PAYLOAD or not isinstance(content, dict):
        raise KilnError(f"{path}: a statement about something else than a bundle")
    return content, str(next(iter(accepted)))


def _compare(bundle: Path, signed: Mapping[str, str]) -> None:
    """Compare the files of a bundle with the signed digests; raises KilnError for the first difference."""
    present = digests(bundle)
    for name, digest in signed.items():
        if name not in present:
            raise KilnError(f"{bundle / name}: missing; the signed bundle has it")
        if present[name] != digest:
            raise KilnError(f"{bundle / name}: changed since the bundle was signed")
    for name in present:
        if name not in signed:
            raise KilnError(f"{bundle / name}: not part of the signed bundle")
