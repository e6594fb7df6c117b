"""Statements of signed bundles by the rules of in-toto's own package, which the test installs for itself."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kiln.trust import PROVENANCE
from kiln.trust.sign import sign

from .bundles import bundle, keys

pytestmark = pytest.mark.heavy

# ParseDict refuses fields that the message types of in-toto and SLSA do not have, and values of other types.
CHECK = """
import json, sys
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
content = json.load(sys.stdin)
statement = json_format.ParseDict(content, statement_pb2.Statement())
Statement.copy_from_pb(statement).validate()
provenance = json_format.ParseDict(content["predicate"], provenance_pb2.Provenance())
assert content["predicateType"] == "https://slsa.dev/provenance/v1"
definition, run = provenance.build_definition, provenance.run_details
assert definition.build_type and definition.HasField("external_parameters") and run.builder.id
assert all(one.uri or one.digest or one.name for one in definition.resolved_dependencies)
print(len(statement.subject))
"""


def test_a_statement_is_valid_by_in_toto_and_slsa(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages)]
    subprocess.run([*install, "in-toto-attestation==0.9.3"], check=True, capture_output=True, timeout=600)
    folder = bundle(tmp_path / "tiny")
    sign(folder, keys(tmp_path, "one")[0], 3)
    envelope = json.loads((folder / PROVENANCE).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))

    def check(content: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CHECK], input=json.dumps(content), text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(packages)},
        )  # fmt: skip

    done = check(statement)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(statement["subject"])
    definition = statement["predicate"]["buildDefinition"]
    for wrong in (
        {**statement, "released": 3},
        {**statement, "subject": [{"name": "a"}]},
        {**statement, "predicate": {"buildDefinition": {**definition, "kind": "x"}}},
    ):
        assert check(wrong).returncode != 0
