"""byoc=auto: a library that is slow is not taken, one that is fast is; a choice is kept and told."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.files import read_json, write_json
from networks import normal, save_network
from onnx import helper

from .building import Project

# A backend whose library is C in a header. `work` is what a call does before it computes.
BACKEND = '''
from pathlib import Path
from kiln.byoc.backend import Backend, Code, Library

def patterns():
    from kiln.byoc import products
    return products.dense()

def generate(match, facts):
    weights = match.operands["w"].value
    if "bias" in match.operands or match.output.is_dynamic:
        return None
    depth, columns = weights.shape
    rows = match.output.shape[0]
    text = """
#include <NAME.h>
static float kept[{count}];
static int32_t SYMBOL_make(const float *w) {{
    for (int i = 0; i < {count}; i++) kept[i] = w[i];
    return 0;
}}
int32_t SYMBOL(const float *x, const float *w, float *y) {{
    (void)w;
    NAME_product(x, kept, y, {rows}, {depth}, {columns});
    return 0;
}}
"""
    source = text.format(count=depth * columns, rows=rows, depth=depth, columns=columns)
    return Code(source, ["x", "w"], {"w": weights}, reads_past=16, opens=True)

BACKEND = Backend(
    "NAME", archs=["x86_64"], generate=generate, patterns=patterns,
    library=Library("a library", licence="MIT", symbols=[], headers=["NAME.h"], heap="none",
                    folder=str(Path(__file__).parent)),
)
'''
HEADER = """
#include <stdint.h>
static inline void NAME_product(const float *x, const float *w, float *y, int rows, int depth, int columns) {
    for (volatile int wait = 0; wait < WORK; wait++)
        ;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int k = 0; k < depth; k++)
                sum += x[i * depth + k] * w[k * columns + j];
            y[i * columns + j] = sum;
        }
}
"""


def write_network(path: Path) -> None:
    """y = softmax(x * 24x40) * 40x8"""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    save_network(path, nodes, {"x": [16, 24]}, {"y": [16, 8]}, normal(1, 0.3, w1=(24, 40), w2=(40, 8)))


@pytest.fixture
def with_backends(at_home: Project) -> Project:
    folder = at_home.folder / "backends"
    for name, work in (("busy", 200_000), ("plain", 0)):
        (folder / "include").mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(BACKEND.replace("NAME", name))
        (folder / "include" / f"{name}.h").write_text(HEADER.replace("NAME", name).replace("WORK", str(work)))
    write_network(at_home.folder / "two.onnx")
    return at_home


@pytest.mark.heavy
def test_times_decide_and_are_kept(with_backends: Project) -> None:
    words = ("target=x86_64", "model=two.onnx", "byoc=auto,busy,plain", "test")
    printed = with_backends.make(*words)
    assert "two on x86_64: subgraphs are timed on host CPU" in printed and " 2 subgraphs" in printed
    chosen = read_json(with_backends.build / ".stages" / "x86_64" / "two" / "byoc-chosen.json")
    keys = ["dense 16x24 24x40", "dense 16x40 40x8"]
    assert sorted(part["part"] for part in chosen["parts"]) == keys
    for part in chosen["parts"]:
        times = part["times"]
        assert set(times) == {"busy", "plain"} and not times["busy"]["worth"]
        assert times["busy"]["us"] > times["plain"]["us"] > 0 and times["busy"]["kiln"] > 0
        assert part["chosen"] == ("plain" if times["plain"]["worth"] else "kiln")
    manifest = read_json(with_backends.build / "x86_64" / "two" / "manifest.json")
    assert manifest["byoc"] == {key: chosen[key] for key in ("summary", "measured_on", "parts")}
    page = (with_backends.build / "x86_64" / "two" / "report.html").read_text()
    assert chosen["summary"].replace("'", "&#39;") in page and all(f"<td>{key}</td>" in page for key in keys)
    assert "busy takes" in printed or "plain takes" in printed
    assert chosen["summary"] in with_backends.make(*words[:-1], "size")

    # Nothing is done again; and where the choice is lost, the times are not.
    assert "subgraphs are timed" not in with_backends.make(*words)
    times = with_backends.build / ".stages" / "x86_64" / "byoc-times.json"
    kept_times = read_json(times)
    busy = [part["times"]["busy"] for part in chosen["parts"]]
    for by_cpu in kept_times.values():
        for about in by_cpu.values():
            about.update(us=1.0, ratio=0.7 if about in busy else 0.5, worth=True)
    write_json(times, kept_times)
    (with_backends.build / ".stages" / "x86_64" / "two" / "byoc-chosen.json").unlink()
    assert "the times of 2 of 2 subgraphs are known from before" in with_backends.make(*words)
    (library,) = read_json(with_backends.build / "x86_64" / "two" / "manifest.json")["libraries"]
    assert (library["backend"], library["subgraphs"]) == ("plain", keys)
    assert read_json(times) == kept_times


@pytest.mark.heavy
def test_what_cannot_be_timed_stays(with_backends: Project) -> None:
    text = (with_backends.folder / "backends" / "plain.py").read_text()
    (with_backends.folder / "backends" / "plain.py").write_text(text.replace('"x86_64"', '"aarch64"'))
    printed = with_backends.make("target=aarch64", "model=two.onnx", "byoc=auto,plain")
    assert (
        "subgraphs cannot be timed here" in printed
        and "Kiln's own kernels compute all 2 subgraphs: they cannot" in printed
    )
    (with_backends.folder / "backends" / "plain.py").write_text(text)
