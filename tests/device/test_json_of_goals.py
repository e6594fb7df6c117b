"""Every goal and command with --json on a small model: one object of the schema, with figures or files."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fastjsonschema
import numpy as np
import pytest
from kiln.command_line.answer import schema
from kiln.command_line.result_keys import RESULT_KEYS
from networks import normal, save_network
from onnx import helper
from scons_real import lean_targets
from unit.trust.bundles import keys

ROOT = Path(__file__).resolve().parents[2]
VALID = fastjsonschema.compile(json.loads(json.dumps(schema()).replace("2020-12/schema", "draft-07/schema")))
ON = "--target x86_64"
COMMANDS = [
    f"build net.onnx {ON}",
    f"test net.onnx {ON}",
    f"run net.onnx {ON}",
    f"plan net.onnx {ON}",
    f"size net.onnx {ON}",
    f"image net.onnx {ON}",
    f"bench net.onnx {ON} --traffic seen.csv",
    f"profile net.onnx {ON}",
    f"report net.onnx {ON}",
    "report build/x86_64/net build/x86_64/net/report.html",
    f"tune net.onnx {ON}",
    f"joint --model net.onnx,other.yaml {ON}",
    "package net.onnx --target wasm32 --package npm",
    "flash net.onnx --device here",
    "flash net.onnx --device here",
    "status net.onnx --device here",
    "rollback net.onnx --device here",
    "devices",
    "schema",
    "schema target",
    "list models",
    "completion bash",
    "--version",
    "quantise net.onnx --data x.npz",
    f"evaluate net.onnx --data x.npz {ON}",
    f"compare net.onnx {ON}",
    f"traffic rows.yaml monday.csv {ON}",
    "sbom build/x86_64/net",
    "sign build/x86_64/net --key key.pem --release 3",
    "verify build/x86_64/net --key key.pub",
    "publish build/x86_64/net --repository repository --key key.pem",
    "fetch net --target x86_64 --from URL --root repository/metadata/1.root.json --into got",
]
NOT_HERE = {"reduce"}  # which needs a model that fails; tests/unit/command_line/test_reduce.py


def kiln(folder: Path, *words: str) -> dict[str, Any]:
    """The object that a command prints."""
    command = [sys.executable, str(ROOT / "build_tools" / "command.py"), *words, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    answer: dict[str, Any] = json.loads(done.stdout)
    VALID(answer)
    assert (done.returncode, answer["error"]) == (0, None), words
    return answer


@pytest.mark.heavy
def test_every_goal(tmp_path: Path) -> None:
    prepare(tmp_path)
    seen: set[str] = set()
    answers: dict[str, Any] = {}
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "repository")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for number, line in enumerate(COMMANDS):
            if number and line == COMMANDS[number - 1]:  # flashed again: another version
                dense(tmp_path / "net.onnx", 2)
            (result,) = kiln(tmp_path, *line.replace("URL", url).split())["results"]
            seen.add(result["goal"])
            assert result["data"] is not None or (line == "schema" and result["files"]), line
            assert all((tmp_path / path).exists() for path in result["files"].values()), line
            answers[result["goal"]] = result["data"]
        server.shutdown()
    assert seen == set(RESULT_KEYS) - NOT_HERE
    status, rollback = answers["status"], answers["rollback"]
    assert (status["differs_in"], status["damaged"]) == ([], [])
    assert (rollback["in_use"], rollback["before"]) == (status["before"], status["in_use"])
    assert answers["devices"]["devices"][0]["reachable"]


def dense(path: Path, seed: int, rows: int | str = 1) -> Path:
    """Write relu(x w), with other weights for another seed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="dense"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    return save_network(path, nodes, {"x": [rows, 8]}, {"y": [rows, 4]}, normal(seed, 0.5, w=(8, 4)))


def prepare(folder: Path) -> None:
    """Write models, data, a device and keys for all commands."""
    dense(folder / "net.onnx", 1)
    dense(folder / "rows.onnx", 1, "rows")
    source = "source: {kind: file, path: %s}\n"
    (folder / "other.yaml").write_text("description: another\n" + source % "net.onnx")
    dims = "dims: {rows: {min: 1, max: 8, buckets: auto, traffic: all.csv, max_buckets: 2}}\n"
    (folder / "rows.yaml").write_text("description: open\n" + source % "rows.onnx" + dims)
    (folder / "monday.csv").write_text("rows,count\n1,5\n4,2\n")
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", x=x, labels=np.arange(8) % 4)
    (folder / "devices").mkdir()
    local_device = f"target: x86_64\nfolder: {folder}/device\ntransport: {{kind: local}}\n"
    (folder / "devices" / "here.yaml").write_text(f"description: this machine\n{local_device}")
    (folder / "targets").mkdir()
    lean_targets(folder / "targets")
    keys(folder, "key")
