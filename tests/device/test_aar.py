"""An Android archive of a model: its files, and its classes and libraries in a Java machine of this host."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.device.check.runners.bionic import names
from kiln.device.packages import kind_of
from kiln.device.packages.aar import java_package
from kiln.errors import KilnError
from networks import save_two_inputs

from .building import Project

# Runs the golden vectors and inputs that have to be refused, whose errors it prints.
PROGRAM = """
import java.nio.*;
import java.nio.file.*;
import kiln.models.my_net.*;

class Try {
    static void vectors(Model model, Path golden, String[] lines) throws Exception {
        double worst = 0;
        for (String line : lines) {
            String[] words = line.split(" ");
            long batch = Long.parseLong(words[0]);
            Tensor x = model.input("x"), y = model.output("y");
            x.setDims(batch, 7);
            x.buffer().put(Files.readAllBytes(golden.resolve(words[1])));
            model.inputs().get(1).buffer().put(Files.readAllBytes(golden.resolve(words[2])));
            model.run();
            FloatBuffer want = ByteBuffer.wrap(Files.readAllBytes(golden.resolve(words[3])))
                .order(ByteOrder.nativeOrder()).asFloatBuffer();
            if (y.dims()[0] != batch || y.floats().remaining() != want.remaining()) throw new Error("sizes");
            while (want.hasRemaining()) {
                int at = want.position();
                worst = Math.max(worst, Math.abs(want.get() - y.floats().get(at)));
            }
        }
        System.out.println(lines.length + " " + worst + " " + model.variant());
    }

    interface Action { void run() throws Exception; }

    static void refused(Action action) {
        try {
            action.run();
            System.out.println("no error");
        } catch (Exception error) {
            System.out.println(error.getClass().getSimpleName() + ": " + error.getMessage());
        }
    }

    static Model opened(int threads, String[] given) throws Exception {
        MODEL
    }

    public static void main(String[] given) throws Exception {
        Path golden = Paths.get(given[0]);
        String[] lines = given[1].split(";");
        for (int threads : new int[] {1, 3}) {
            try (Model model = opened(threads, given)) {
                vectors(model, golden, lines);
                if (threads > 1) continue;
                refused(() -> model.input("z"));
                refused(() -> model.input("x").setDims(6, 7));
                refused(() -> model.input("x").setDims(7));
                refused(() -> model.input("fixed").setDims(4));
                model.input("x").setDims(1, 6);
                refused(model::run);
                model.reset();
            }
        }
        refused(() -> { Model model = opened(1, given); model.close(); model.close(); model.run(); });
        refused(() -> opened(-1, given));
        REFUSED
    }
}
"""
ERRORS = [
    "IllegalArgumentException: the model has no input 'z': x, fixed",
    "IllegalArgumentException: x: sizes [6, 7] exceed the greatest, of 35 elements",
    "IllegalArgumentException: x: rank 1, allowed 2",
    "IllegalArgumentException: fixed: its sizes are [3], got [4]",
    "IllegalArgumentException: x axis 1: 6, allowed 7",
    "IllegalStateException: the model is closed",
    "IllegalArgumentException: threads: -1, allowed: 0 or more",
]
MODEL = {
    "embedded": "return new Model(threads);",
    "file": """
        Path params = Paths.get(given[2], Model.paramsAsset());
        return new Model(ByteBuffer.wrap(Files.readAllBytes(params)), threads);
    """,
}
YAML = """
source: {{kind: file, path: {path}}}
format: onnx
dims: {{batch: {{min: 1, max: 5, buckets: [1]}}}}
params: {{storage: {storage}}}
"""


def _java(program: str) -> str:
    executable = shutil.which(program)
    if executable is None:
        pytest.skip(f"{program} is not installed: default-jdk-headless")
    return executable


@pytest.mark.heavy
@pytest.mark.parametrize("storage", ["embedded", "file"])
def test_the_classes_in_a_java_machine(storage: str, tmp_path: Path) -> None:
    """The libraries of the archive themselves, with glibc in place of bionic."""
    java, javac = _java("java"), _java("javac")
    project = Project(tmp_path)
    save_two_inputs(tmp_path / "net.onnx")
    text = YAML.format(path=tmp_path / "net.onnx", storage=storage)
    (tmp_path / "models/my_net.yaml").write_text(text.lstrip())
    project.make("target=android_x86_64,android_arm64", "model=my_net", "package")
    archives = [project.build / name / "my_net.aar" for name in ("android_x86_64", "android_arm64")]
    assert archives[0].read_bytes() == archives[1].read_bytes()  # both ABIs in both

    with zipfile.ZipFile(archives[0]) as archive:
        archive.extractall(tmp_path / "aar")
        entries = set(archive.namelist())
    for abi in ("x86_64", "arm64-v8a"):
        folder = f"prefab/modules/my_net/libs/android.{abi}"
        assert {f"jni/{abi}/libmy_net.so", f"jni/{abi}/libmy_net_jni.so", f"{folder}/libmy_net.so"} <= entries
        assert {f"{folder}/include/my_net.h", f"{folder}/include/kiln.h"} <= entries
        assert json.loads((tmp_path / "aar" / folder / "abi.json").read_text())["abi"] == abi
    assert {"classes.jar", "R.txt", "AndroidManifest.xml", "prefab/prefab.json"} <= entries
    manifest = (tmp_path / "aar/AndroidManifest.xml").read_text()
    assert 'package="kiln.models.my_net"' in manifest and 'minSdkVersion="24"' in manifest
    assets = tmp_path / "aar/assets"
    assert (assets / "kiln.models.my_net/x86_64/params.bin").is_file() == (storage == "file")

    bundle = project.bundle("android_x86_64", "my_net")
    lines = [
        " ".join([str(entry.dims["batch"]), *(t.file for t in [*entry.inputs, *entry.outputs])])
        for entry in bundle.golden().vectors
    ]
    refused = {
        "embedded": "",
        "file": "refused(() -> new Model(ByteBuffer.allocate(1), 1));",
    }
    source = PROGRAM.replace("MODEL", MODEL[storage]).replace("REFUSED", refused[storage])
    (tmp_path / "Try.java").write_text(source)
    jar = str(tmp_path / "aar/classes.jar")
    subprocess.run([javac, "-cp", jar, "-d", str(tmp_path), str(tmp_path / "Try.java")], check=True)
    libraries = str(tmp_path / "aar/jni/x86_64")
    done = subprocess.run(
        [java, "-Xcheck:jni", f"-Djava.library.path={libraries}", "-cp", f"{jar}:{tmp_path}", "Try",
         str(bundle.folder / "golden"), ";".join(lines), str(assets)],
        env={"LD_LIBRARY_PATH": str(names("x86_64"))}, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    one, *errors = done.stdout.splitlines()
    three = errors.pop(5)
    for line in (one, three):
        count, worst, variant = line.split()
        assert int(count) == len(lines) >= 3 and float(worst) < 1e-5 and variant == "v2"
    assert errors[:7] == ERRORS
    assert len(errors) == (8 if storage == "file" else 7)
    assert errors[7:] == [] or errors[7].startswith("IllegalArgumentException: params")


def test_names_of_java() -> None:
    assert java_package("resnet") == "kiln.models.resnet"
    assert java_package("native") == "kiln.models.native_"


def test_a_package_needs_a_java_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(KilnError, match=r"'javac' is not installed; install it with: sudo apt-get install"):
        kind_of(load_target("android_arm64"), None)
