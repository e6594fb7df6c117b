"""Names from a model file in generated text: C, C++, CMake, pkg-config and HTML read what was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from c_programs import WARNINGS, need, run
from emitted import PAYLOAD, make_plan
from kiln.config.c_words import KEYWORDS, RESERVED, SYMBOLS, can_name_model, can_name_symbol
from kiln.config.library import identifier
from kiln.device.packages import npm
from kiln.emit import c_text, consumers
from kiln.emit.headers import include_flags
from kiln.emit.joint_example import example_lines, joint_example
from kiln.emit.source import emit
from kiln.errors import KilnError, printable
from kiln.frontend.interface import c_names
from kiln.plan.schema import parse_plan
from kiln.report.html import environment
from scons_real import ROOT

BIDI = "a\u202e/* \u2066 */ evil();\u2069"  # reads backwards in an editor
HOSTILE = [
    *sorted(word for word in RESERVED if word == word.lower()),
    *(
        "session",
        "result",
        "detail",
        "sizes",
        "inputs",
        "outputs",
        "main",
        "memcpy",
        "__COUNTER__",
        "1st",
        "",
    ),
    *(
        "*/ int evil; /*",
        "// \\\n",
        '"; system("x"); "',
        "??/\n",
        "%s%n",
        "$(id)",
        "${x}",
        "<b>",
        BIDI,
        "\x1b[31m\0",
    ),
]
# Before the model's own header, as in a program that uses them.
HEADERS = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
    stdarg stdbool stddef stdint stdio stdlib string time wchar wctype unistd fcntl sys/mman sys/stat
    sys/types sys/socket sys/time sys/wait netinet/in netdb pthread poll dirent dlfcn termios"""


@pytest.mark.heavy
@pytest.mark.slow
def test_the_header_compiles_for_every_name_in_every_dialect(tmp_path: Path) -> None:
    plan = make_plan()
    taken: set[str] = set()
    given = [
        *plan["inputs"],
        *({"dtype": kind, "shape": []} for kind in ("int64", "float32") for _ in HOSTILE),
    ]
    names = ["session", "class", *HOSTILE, *HOSTILE]
    plan["inputs"] = [
        {"layout": None, "quant": None, **port, "name": name, "c_name": c_name}
        for port, name, c_name in zip(given, names, c_names(names, "input", taken), strict=True)
    ]
    plan["target"] = BIDI
    plan["buckets"][0]["steps"][0]["label"] = BIDI
    for name, content in emit(parse_plan(plan), PAYLOAD).items():
        text = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(text)
        if name.endswith((".h", ".c", ".S")):
            assert text.isascii() or all(
                character.isprintable() for character in text.decode().replace("\n", "")
            )
    includes = "".join(f"#include <{name}.h>\n" for name in HEADERS.split())
    source = tmp_path / "use.c"
    source.write_text(f'#define _GNU_SOURCE\n{includes}#include "tiny.h"\n#include "tiny_plan.c"\n')
    header = tmp_path / "use.cc"
    header.write_text(f'{includes}#include "tiny.h"\n')
    flags = ["-fsyntax-only", f"-I{tmp_path}", *include_flags()]
    for compiler, standard, file in (
        ("gcc", "gnu17", source),
        ("gcc", "c11", source),
        ("gcc", "gnu2x", source),
        ("g++", "c++20", header),
        ("g++", "gnu++20", header),
    ):
        run([need(compiler), f"-std={standard}", "-Wall", "-Wextra", *flags, str(file)])


# Parameters and local variables of the functions that a plan declares, and of the example in a header.
LOCAL = [
    "session", "result", "detail", "sizes", "model", "status", "frame", "bucket", "step", "inputs", "y",
    "config", "arena", "output_0",
]  # fmt: skip


@pytest.mark.parametrize("name", LOCAL)
def test_a_model_with_the_name_of_a_local_variable(name: str, tmp_path: Path) -> None:
    for file, content in emit(parse_plan(make_plan(name)), PAYLOAD).items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    example = tmp_path / "example.c"
    example.write_text("\n".join([*example_lines((tmp_path / f"{name}.h").read_text()), ""]))
    joint = joint_example(name, {name: (tmp_path / f"{name}.h").read_text()}, one_region=True)
    sizes = f"#define {name.upper()}_ARENA_OF_{name.upper()} 0"
    (tmp_path / "joint.c").write_text("\n".join([joint[0], sizes, *joint[1:], ""]))
    flags = ["-fsyntax-only", *WARNINGS, f"-I{tmp_path}", *include_flags()]
    run([need("gcc"), *flags, str(tmp_path / f"{name}_plan.c"), str(example), str(tmp_path / "joint.c")])


TOOLS = ROOT / "build_tools/kiln"
# Programs that are compiled for a model, and macros that they need.
PROGRAMS = {
    TOOLS / "report/programs/model.c": [],
    TOOLS / "report/programs/joint.c": ['-DJOINT_HEADER="tiny.h"', "-DJOINT_MODELS=M(tiny)"],
    TOOLS / "device/programs/model.c": [
        "-DKILN_PARAMS_FILE_BYTES=0",
        "-DKILN_TYPED_PLAN(dims, result, detail)=tiny_plan(dims[0], result, detail)",
    ],
    TOOLS / "device/programs/model_image.c": [
        "-DKILN_INTERFACE=tiny_interface", '-DKILN_IMAGE_FILE="x"', "-DKILN_IMAGE_PLACE_ALIGN=64",
        "-DKILN_PARAMS_FILE_BYTES=0",
        "-DKILN_TYPED_PLAN(model, dims, result, detail)=tiny_plan_loaded(model, dims[0], result, detail)",
    ],
    TOOLS / "device/packages/npm_files/module.c": [],
    TOOLS / "device/packages/aar_files/glue.c": [
        "-DNATIVE(name)=Java_##name", '-DABI="any"', "-DINPUTS=1", "-DOUTPUTS=1",
        "-DINPUT_BYTES={1, 0}", "-DOUTPUT_BYTES={1, 0}", "-DARENA_BYTES=64", "-DSTATE_BYTES=0",
    ],
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_no_program_has_a_name_that_a_model_may_have(program: Path, tmp_path: Path) -> None:
    """Every word of a program may name its model, and no function refers to the model where a local
    variable could hide it."""
    text = program.read_text()
    found = set(re.findall(r"\b[a-z]\w*\b", text)) - {"tiny"}
    words = sorted(word for word in found if can_name_model(word) and not word.startswith("harness_"))
    models = "".join(f"extern const kiln_model {word};\n" for word in words)
    for file, content in emit(parse_plan(make_plan()), PAYLOAD).items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    header = tmp_path / "tiny.h"
    header.write_text(header.read_text() + models)
    (tmp_path / "memory.h").write_text(npm.memory_header("tiny", 2, 1, params_file=True))
    (tmp_path / "facts.h").write_text("")
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        f"-I{tmp_path}",
        f"-I{TOOLS / 'device/programs'}",
        *include_flags(),
    ]
    arguments = ['-DKILN_HEADER="tiny.h"', "-DKILN_MODEL=tiny", *PROGRAMS[program]]
    run([need("gcc"), "-fsyntax-only", "-Werror", *flags, "-Wno-attributes", *arguments, str(program)])
    inside = [line.strip() for line in text.splitlines() if re.match(r"\s.*\bKILN_MODEL\b", line)]
    assert set(inside) <= {"return &KILN_MODEL;"}  # of a function without variables


def test_no_model_has_the_name_of_a_variable_of_its_plan() -> None:
    source = emit(parse_plan(make_plan()), PAYLOAD)["tiny_plan.c"]
    assert isinstance(source, str)
    names = re.findall(r"^static [^(=;]*?(\w+)(?:\[[^]]*\])?(?: = |\()", source, re.MULTILINE)
    own = {name for name in names if not name.startswith(("kiln_", "tiny_"))}
    assert {"hash", "buckets", "step_of_two", "dimensions", "select_bucket"} <= own
    for name in own:
        assert not can_name_model(name), name
        assert can_name_model(identifier(name))


def test_reserved_words() -> None:
    assert {"linux", "unix", "errno", "stdin", "assert", "int64_t", "size_t"} <= RESERVED
    assert {"constexpr", "typeof_unqual", "co_await", "thread_local"} <= KEYWORDS
    assert {"exp", "expf", "expl", "read", "malloc", "main"} <= SYMBOLS
    for name in ("exp", "linux", "read", "kiln_x", "kiln", "while"):
        assert not can_name_symbol(name)
        assert can_name_symbol(identifier(name))
        with pytest.raises(KilnError, match="cannot name a C symbol"):
            c_text.check_name(name, "x")
    with pytest.raises(KilnError):
        c_text.check_name("name\n", "x")


def test_comments_and_strings() -> None:
    for text in HOSTILE:
        comment = c_text.comment(text)
        assert "*/" not in comment and "/*" not in comment and comment.isprintable()
        assert re.fullmatch(
            r'"([ !#-\[\]-~]|\\[0-7]{3})*"', c_text.string(text)
        ) and "?" not in c_text.string(text)
    assert c_text.comment(BIDI) == "a\\u202e/ * \\u2066 * / evil();\\u2069"
    assert printable("Größe 日本") == "Größe 日本"


def test_a_web_page_shows_marks_of_writing_direction() -> None:
    page = environment().from_string("<p>{{ name }}</p>").render(name=BIDI + "<b>")
    assert page == "<p>a\\u202e/* \\u2066 */ evil();\\u2069&lt;b&gt;</p>"


def bundle(folder: Path, description: str) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libtiny.a").write_bytes(b"!<arch>\n")
    consumers.write(folder, "tiny", f"t\n{BIDI}", description, "none")
    return folder


def test_cmake_and_pkgconfig_read_text_as_text(tmp_path: Path) -> None:
    text = 'a $HOME ${libdir} "q" \\ # not a comment ;\n' + BIDI
    folder = bundle(tmp_path / "bundle", text)
    config = (folder / "cmake" / "tinyConfig.cmake").read_text()
    assert config.replace("\n", "").isprintable() and config.splitlines()[0].startswith(
        "# tiny for t a\\u202e"
    )
    shown = (folder / "pkgconfig" / "tiny.pc").read_text()
    [line] = [line for line in shown.splitlines() if line.startswith("Description: ")]
    assert line.startswith(r"""Description: a $$HOME $${libdir} "q" \\ \# not a comment ; a\\u202e""")
    assert consumers.cmake_text('a"b$c;d\\') == 'a\\"b\\$c\\;d\\\\'
    assert consumers.pkgconfig_file("lib a$b.a") == "lib\\ a\\$$b.a"
