"""An npm package of a bundle for WebAssembly: in Node.js, and in a page of a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import scons_real
from kiln import packages
from kiln.files import read_json
from networks import save_two_inputs

from .building import Project

# Runs the golden vectors; then inputs that have to be refused, whose errors it prints.
SCRIPT = """
import { readFileSync } from "node:fs";
const [folder] = process.argv.slice(2);
const { load, about } = await import("kiln-net");
const model = await load();
const golden = JSON.parse(readFileSync(`${folder}/golden/golden.json`));
const read = (tensor, port) => {
  const bytes = readFileSync(`${folder}/golden/${tensor.file}`);
  const own = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  return { data: new globalThis[port.array](own), dims: tensor.shape };
};
let worst = 0;
for (const vector of golden.vectors) {
  const named = vector.inputs.map((tensor, i) => [about.inputs[i].name, read(tensor, about.inputs[i])]);
  const outputs = model.run(Object.fromEntries(named));
  vector.outputs.forEach((tensor, i) => {
    const want = read(tensor, about.outputs[i]), got = outputs[about.outputs[i].name];
    if (`${got.dims}` !== `${want.dims}`) throw new Error(`dims ${got.dims}, ${want.dims} expected`);
    want.data.forEach((value, k) => (worst = Math.max(worst, Math.abs(value - got.data[k]))));
  });
}
console.log(golden.vectors.length, worst);
const floats = (count) => new Float32Array(count), fixed = floats(3);
for (const inputs of [
  null, floats(7).length, {}, { other: 1 }, { x: { data: new Int8Array(7), dims: [1, 7] }, fixed },
  { x: floats(7), fixed },
  { x: { data: floats(8), dims: [1, 7] }, fixed }, { x: { data: floats(42), dims: [6, 7] }, fixed },
  { x: { data: floats(7), dims: [7] }, fixed }, { x: { data: floats(7), dims: [1, -7] }, fixed },
]) {
  try {
    model.run(inputs);
    console.log("no error");
  } catch (error) {
    console.log(`${error.name}: ${error.message}`);
  }
}
"""
ERRORS = [
    "TypeError: an object expected, with the inputs x, fixed",
    "TypeError: an object expected, with the inputs x, fixed",
    "TypeError: input 'x' is missing",
    "TypeError: the model has no input 'other': x, fixed",
    "TypeError: input 'x': Float32Array expected, got Int8Array",
    "TypeError: input 'x': { data, dims } expected, with dims like [batch,7]",
    "RangeError: input 'x': 8 elements, dims [1,7] need 7",
    "RangeError: x axis 0: 6, allowed 1..5",
    "RangeError: x: rank 1, allowed 2",
    "TypeError: input 'x': { data, dims } expected, with dims like [batch,7]",
]
YAML = """
source: {{kind: file, path: {path}}}
format: onnx
dims: {{batch: {{min: 1, max: 5, buckets: [1]}}}}
params: {{storage: {storage}}}
"""


def installed(archive: Path, folder: Path) -> Path:
    """The folder of a package below `folder`/node_modules, where Node.js looks for it."""
    scons_real.unpack(archive, folder)
    about = json.loads((folder / "package/package.json").read_text())
    target = folder / "node_modules" / about["name"]
    target.parent.mkdir(exist_ok=True)
    return (folder / "package").rename(target)


def node() -> str:
    path = shutil.which("node")
    if path is None:
        pytest.fail(packages.missing_program("node"), pytrace=False)
    return path


@pytest.mark.heavy  # for WebAssembly zig builds a whole C library, for half a minute
@pytest.mark.parametrize("storage", ["embedded", "file"])
def test_a_package_in_node(storage: str, tmp_path: Path) -> None:
    """Dynamic and fixed shapes, wrong inputs, and a module that needs nothing of its surroundings."""
    project = Project(tmp_path)
    save_two_inputs(tmp_path / "net.onnx")
    text = YAML.format(path=tmp_path / "net.onnx", storage=storage)
    (tmp_path / "models/net.yaml").write_text(text.lstrip())
    project.make("target=wasm32", "model=net", "package")
    package = installed(project.build / "wasm32/net.npm.tgz", tmp_path)
    assert (package / "params.bin").is_file() == (storage == "file")
    types = (package / "index.d.ts").read_text()
    assert 'readonly "x": Tensor<Float32Array>;' in types
    assert 'readonly "fixed": Float32Array | Tensor<Float32Array>;' in types
    (tmp_path / "try.mjs").write_text(SCRIPT)
    done = subprocess.run(
        [node(), "try.mjs", str(project.build / "wasm32/net")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, *errors = done.stdout.splitlines()
    count, worst = first.split()
    assert int(count) >= 3 and 0 <= float(worst) < 1e-5
    assert errors == ERRORS


def test_other_systems_have_no_package(tmp_path: Path) -> None:
    done = Project(tmp_path).scons("target=aarch64", "model=resnet", "package")
    assert done.returncode == 2
    assert done.stderr == (
        "kiln: error: goal 'package': target 'aarch64' is for Linux, for which Kiln makes no package; use "
        "the bundle and its .tar.gz\n"
    )


PAGE = """<!doctype html><meta charset="utf-8"><title>waiting</title><body><img id="image" src="image.png">
<script type="module">
import { load, about } from "./node_modules/kiln-resnet/index.js";
try {
  const image = document.getElementById("image");
  await image.decode();
  const model = await load();
  const [, height, width] = about.inputs[0].shape;
  const context = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const data = new Int8Array(width * height * 3);
  for (let i = 0; i < width * height; i++)
    for (let c = 0; c < 3; c++) data[3 * i + c] = pixels[4 * i + c] - 128;
  const { data: scores } = model.run({ [about.inputs[0].name]: data })[about.outputs[0].name];
  document.body.textContent = `scores ${Array.from(scores).join(" ")} end`;
} catch (error) {
  document.body.textContent = `failed: ${error}`;
}
</script>
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a server of `tmp_path` on this machine."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.heavy
def test_a_page_classifies_a_picture(tmp_path: Path, site: str) -> None:
    """A page that reads the pixels of an image from a canvas gets the scores of the golden vector `image`."""
    from PIL import Image

    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip(packages.missing_program("chromium"))
    project = Project(tmp_path)
    project.make("target=wasm32", "model=resnet", "package")
    installed(project.build / "wasm32/resnet.npm.tgz", tmp_path)
    bundle = project.bundle("wasm32", "resnet")
    vector = next(vector for vector in bundle.vectors() if vector.name == "image")
    _, height, width, _ = vector.inputs[0].shape
    pixels = (vector.inputs[0].astype("int16") + 128).astype("uint8").reshape(height, width, 3)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    (tmp_path / "index.html").write_text(PAGE)
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=20000", "--dump-dom", f"{site}/index.html"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    scores = re.search(r"scores ([-\d ]+) end", done.stdout)
    assert scores is not None, done.stdout + done.stderr[-2000:]
    assert [int(score) for score in scores[1].split()] == vector.outputs[0].reshape(-1).tolist()
    assert read_json(bundle.folder / "manifest.json")["target"]["name"] == "wasm32"
