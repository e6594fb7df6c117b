"""Tables of test_every_key: an example of what each key of a YAML file changes, and where it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HASH, FILE = "0" * 64, {"kind": "file", "path": "net.onnx"}
WHEEL = {"python": "3.11", "platform": "linux"}
PYPI = {"kind": "pypi", "package": "a", "version": "1", "path": "a.onnx", "sha256": HASH, "wheel": WHEEL}
GENERATED = {"kind": "generate", "generator": "g", "sha256": HASH}
AUTO = {"min": 1, "max": 8, "buckets": "auto", "traffic": "seen.csv"}
N = {"min": 1, "max": 8}
PADDED = {"n": {**N, "buckets": [{"pad": 8}]}}
IMAGES = {"resize": "letterbox", "size": [8, 8], "layout": "NHWC"}
ONES = {"input": "x", "value": "ones"}
PICTURE = {"kind": "file", "path": "cat.png"}


def golden(**entry: Any) -> dict[str, Any]:
    return {"golden": {"inputs": [entry]}}


def of_class(**changed: Any) -> dict[str, Any]:
    return {"preprocess": {**IMAGES, **changed}}


def dim(**changed: Any) -> dict[str, Any]:
    return {"dims": {"n": {**N, **changed}}}


def case(**condition: Any) -> dict[str, Any]:
    return {"dims": {"n": N}, "special_cases": [condition]}


# By class and key: keys of a file with one value, and with another. Everything else of the file is BASE's.
EXAMPLES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "Model.description": ({"description": "a"}, {"description": "b"}),
    "Model.licence": ({"licence": "MIT"}, {"licence": "BSD"}),
    "Model.homepage": ({"homepage": "https://a.example"}, {"homepage": "http://b.example/c"}),
    "Model.aliases": ({"aliases": ["a"]}, {"aliases": ["b"]}),
    "Model.format": ({"format": "onnx"}, {"format": "tflite"}),
    "Model.bounds": ({"bounds": {"t": 4}}, {"bounds": {"t": 5}}),
    "Model.winograd": ({"winograd": "off"}, {"winograd": "f2"}),
    "Model.precision": ({"precision": "fp16"}, {"precision": "fp32"}),
    "Model.threads": ({"threads": "none"}, {"threads": "pthread"}),
    "Model.checks": ({"checks": "indices"}, {}),
    "Model.quantised": ({"quantised": "strict"}, {}),
    "Model.patches": ({"patches": "none"}, {"patches": "auto"}),
    "Model.variants": ({"variants": ["a"]}, {"variants": ["b"]}),
    "PypiSource.package": ({"source": PYPI}, {"source": {**PYPI, "package": "b"}}),
    "PypiSource.version": ({"source": PYPI}, {"source": {**PYPI, "version": "2"}}),
    "PypiSource.path": ({"source": PYPI}, {"source": {**PYPI, "path": "b.onnx"}}),
    "PypiSource.sha256": ({"source": PYPI}, {"source": {**PYPI, "sha256": "1" * 64}}),
    "PypiSource.wheel_sha256": ({"source": PYPI}, {"source": {**PYPI, "wheel_sha256": HASH}}),
    "WheelTags.python": ({"source": PYPI}, {"source": {**PYPI, "wheel": {**WHEEL, "python": "3.12"}}}),
    "WheelTags.platform": ({"source": PYPI}, {"source": {**PYPI, "wheel": {**WHEEL, "platform": "mac"}}}),
    "FileSource.path": ({"source": FILE}, {"source": {**FILE, "path": "b.onnx"}}),
    "FileSource.sha256": ({"source": FILE}, {"source": {**FILE, "sha256": HASH}}),
    "GenerateSource.generator": ({"source": GENERATED}, {"source": {**GENERATED, "generator": "h"}}),
    "GenerateSource.seed": ({"source": GENERATED}, {"source": {**GENERATED, "seed": 1}}),
    "GenerateSource.weights": ({"source": GENERATED}, {"source": {**GENERATED, "weights": PYPI}}),
    "GenerateSource.sha256": ({"source": GENERATED}, {"source": {**GENERATED, "sha256": "1" * 64}}),
    "PythonSource.function": tuple({"source": {"kind": "python", "function": f"a:{name}"}} for name in "fg"),  # type: ignore[dict-item]
    "Cut.elements": ({"cut": {"elements": {"x": 2}}}, {"cut": {"elements": {"x": 3}}}),
    "Cut.constants": ({"cut": {"constants": {"x": 2}}}, {"cut": {"constants": {"x": 3}}}),
    "Cut.inputs": ({"cut": {"inputs": ["a"]}}, {"cut": {"inputs": ["b"]}}),
    "Cut.outputs": ({"cut": {"outputs": {"y": "a"}}}, {"cut": {"outputs": {"y": "b"}}}),
    "Cut.signature": tuple(
        {"source": {**FILE, "path": "a.tflite"}, "cut": {"signature": name}} for name in "ab"
    ),  # type: ignore[dict-item]
    "Tensor.shape": ({"inputs": {"x": {"shape": [1]}}}, {"inputs": {"x": {"shape": [2]}}}),
    "Tensor.dtype": ({"inputs": {"x": {"dtype": "int8"}}}, {"inputs": {"x": {"dtype": "uint8"}}}),
    "Tensor.layout": ({"inputs": {"x": {"layout": "NC"}}}, {"inputs": {"x": {"layout": "NT"}}}),
    "Tensor.pad": tuple({"dims": PADDED, "inputs": {"x": {"pad": pad}}} for pad in (1.0, 2.0)),  # type: ignore[dict-item]
    "Tensor.mask": ({"inputs": {"x": {"mask": True}}}, {"inputs": {"x": {"mask": False}}}),
    "Dim.min": (dim(), dim(min=2)),
    "Dim.max": (dim(), dim(max=9)),
    "Dim.multiple": (dim(min=2), dim(min=2, multiple=2)),
    "Dim.auto": (dim(), {"dims": {"n": {**N, "auto": True, "traffic": "seen.csv"}}}),
    "Dim.fallback": (dim(buckets=[4]), dim(buckets=[4], fallback="error")),
    "Dim.traffic": (dim(**AUTO), dim(**{**AUTO, "traffic": "other.csv"})),
    "Dim.costs": (dim(**AUTO), dim(**AUTO, costs="costs.csv")),
    "Dim.max_buckets": (dim(**AUTO), dim(**AUTO, max_buckets=2)),
    "Dim.code_budget": (dim(**AUTO), dim(**AUTO, code_budget=1024)),
    "Dim.auto_as": (dim(**AUTO), dim(**AUTO, auto_as="exact")),
    "Dim.auto_assume": (dim(**AUTO), dim(**AUTO, auto_assume="measured")),
    "Bucket.exact": (dim(buckets=[{"exact": 2}]), dim(buckets=[{"exact": 4}])),
    "Bucket.range": (dim(buckets=[{"range": [2, 4]}]), dim(buckets=[{"range": [2, 5]}])),
    "PadTo.to": (dim(buckets=[{"pad": 4}]), dim(buckets=[{"pad": 8}])),
    "PadTo.assume": (dim(buckets=[{"pad": 4}]), dim(buckets=[{"pad": {"to": 4, "assume": "measured"}}])),
    "Condition.input": (case(input="x", value="ones"), case(input="y", value="ones")),
    "Condition.value": (case(input="x", value="ones"), case(input="x", value="zeros")),
    "Condition.dim": tuple(
        {"dims": {"n": N, "m": N}, "special_cases": [{"dim": name, "exact": 2}]} for name in "nm"
    ),  # type: ignore[dict-item]
    "Condition.exact": (case(dim="n", exact=2), case(dim="n", exact=3)),
    "Condition.range": (case(dim="n", range=[2, 3]), case(dim="n", range=[2, 4])),
    "Condition.multiple": (case(dim="n", multiple=2), case(dim="n", multiple=4)),
    "SpecialCase.all": tuple(case(all=[{"dim": "n", "exact": size}]) for size in (2, 3)),  # type: ignore[dict-item]
    "KeptValue.output": ({"state": {"h": {"output": "a"}}}, {"state": {"h": {"output": "b"}}}),
    "KeptValue.initial": tuple({"state": {"h": {"output": "a", "initial": one}}} for one in (1.0, 2.0)),  # type: ignore[dict-item]
    "Preprocess.input": (of_class(), of_class(input="x")),
    "Preprocess.resize": (of_class(), of_class(resize="stretch")),
    "Preprocess.resize_to": tuple(of_class(resize="shorter_side", resize_to=size) for size in (9, 10)),  # type: ignore[dict-item]
    "Preprocess.size": (of_class(), of_class(size=[9, 9])),
    "Preprocess.filter": (of_class(), of_class(filter="lanczos")),
    "Preprocess.channels": (of_class(), of_class(channels="BGR")),
    "Preprocess.scale": (of_class(), of_class(scale=2.0)),
    "Preprocess.mean": (of_class(), of_class(mean=[2.0])),
    "Preprocess.std": (of_class(), of_class(std=[2.0])),
    "Preprocess.pad": (of_class(), of_class(pad=2.0)),
    "Preprocess.layout": (of_class(), of_class(layout="NCHW")),
    "LabelList.names": tuple({**of_class(), "labels": {"kind": "list", "names": [name]}} for name in "ab"),  # type: ignore[dict-item]
    "LabelFile.kind": tuple(
        {**of_class(), "labels": {"kind": kind, "source": FILE}} for kind in ("json", "lines")
    ),  # type: ignore[dict-item]
    "Run.image": tuple({**of_class(), "run": {"image": {**FILE, "path": name}}} for name in "ab"),  # type: ignore[dict-item]
    "Run.crop": tuple({**of_class(), "run": {"image": FILE, "crop": [0, 0, 4, end]}} for end in (4, 5)),  # type: ignore[dict-item]
    "Run.top": tuple({**of_class(), "run": {"image": FILE, "top": top}} for top in (1, 2)),  # type: ignore[dict-item]
    "Run.softmax": tuple({**of_class(), "run": {"image": FILE, "softmax": on}} for on in (False, True)),  # type: ignore[dict-item]
    "Run.output": tuple({**of_class(), "run": {"image": FILE, "output": name}} for name in "ab"),  # type: ignore[dict-item]
    "RandomInput.seed": (golden(kind="random", seed=1), golden(kind="random", seed=2)),
    "RandomInput.inputs": tuple(golden(kind="random", seed=1, inputs={name: {"low": 0.0}}) for name in "xy"),  # type: ignore[dict-item]
    "Bounds.low": (golden(kind="random", seed=1, low=0.0), golden(kind="random", seed=1)),
    "Bounds.high": (golden(kind="random", seed=1, high=0.0), golden(kind="random", seed=1)),
    "NormalInput.seed": (golden(kind="normal", seed=1), golden(kind="normal", seed=2)),
    "NormalInput.mean": (golden(kind="normal", seed=1), golden(kind="normal", seed=1, mean=2.0)),
    "NormalInput.std": (golden(kind="normal", seed=1), golden(kind="normal", seed=1, std=2.0)),
    "ImageInput.source": tuple(
        {**of_class(), **golden(kind="image", source={**FILE, "path": name})} for name in "ab"
    ),  # type: ignore[dict-item]
    "ImageInput.crop": tuple(
        {**of_class(), **golden(kind="image", source=PICTURE, crop=[0, 0, 4, end])} for end in (4, 5)
    ),  # type: ignore[dict-item]
    "ImageInput.rotate": tuple(
        {**of_class(), **golden(kind="image", source=PICTURE, rotate=angle)} for angle in (0, 90)
    ),  # type: ignore[dict-item]
    "TensorInput.tensors": tuple(golden(kind="tensors", tensors={name: FILE}) for name in "xy"),  # type: ignore[dict-item]
    "Golden.runs": ({"golden": {"runs": 2}}, {"golden": {"runs": 3}}),
    "Golden.reference": ({"golden": {"reference": "onnxruntime"}}, {"golden": {"reference": "auto"}}),
    "Limits.absolute": tuple({"tolerance": {"outputs": {"y": {"absolute": one}}}} for one in (1.0, 2.0)),  # type: ignore[dict-item]
    "Limits.relative": tuple({"tolerance": {"outputs": {"y": {"relative": one}}}} for one in (1.0, 2.0)),  # type: ignore[dict-item]
    "Limits.levels": tuple({"tolerance": {"outputs": {"y": {"levels": one}}}} for one in (1, 2)),  # type: ignore[dict-item]
    "Tolerance.absolute": ({"tolerance": {"absolute": 1.0}}, {"tolerance": {"absolute": 2.0}}),
    "Tolerance.relative": ({"tolerance": {"relative": 1.0}}, {"tolerance": {"relative": 2.0}}),
    "Tolerance.levels": ({"tolerance": {"levels": 1}}, {"tolerance": {"levels": 2}}),
    **{
        f"Tolerance.{kind}": tuple(
            {"precision": kind, "tolerance": {kind: {"relative": one}}} for one in (0.5, 0.6)
        )
        for kind in ("fp16", "bf16", "tf32")
    },  # type: ignore[dict-item]
    "Params.storage": ({"params": {"storage": "file"}}, {"params": {"storage": "embedded"}}),
    "Params.section": tuple({"params": {"storage": "section", "section": name}} for name in (".a", ".b")),  # type: ignore[dict-item]
    "Weights.type": ({"weights": "int8"}, {"weights": "int4"}),
    "Weights.block": ({"weights": {"type": "int8", "block": 32}}, {"weights": "int8"}),
    "Weights.limit": ({"weights": {"type": "int8", "limit": 0.5}}, {"weights": "int8"}),
    "Byoc.backends": ({"byoc": "none"}, {"byoc": "auto"}),
    "Byoc.take": ({"byoc": {"backends": ["auto"], "take": ["a"]}}, {"byoc": "auto"}),
    "Byoc.leave": ({"byoc": {"backends": ["auto"], "leave": ["a"]}}, {"byoc": "auto"}),
    **{
        f"Budget.{key}": ({"budget": {key: 1}}, {"budget": {key: 2}})
        for key in ("flash_bytes", "ram_bytes", "stack_bytes", "instructions")
    },
    "Budget.latency_ms": ({"budget": {"latency_ms": 1.0}}, {"budget": {"latency_ms": 2.0}}),
    "StageLimits.seconds": ({"limits": {"seconds": 1}}, {"limits": {"seconds": 2}}),
    "StageLimits.program_seconds": (
        {"limits": {"program_seconds": 1}},
        {"limits": {"program_seconds": 2}},
    ),
    "StageLimits.memory": ({"limits": {"memory": 1 << 30}}, {"limits": {"memory": 1 << 31}}),
}

# By class and key: a file in which the key would change nothing, and the end of the refusal.
IDLE: dict[str, tuple[Mapping[str, Any], str]] = {
    "Cut.signature": ({"cut": {"signature": "a"}}, "key 'cut.signature': for TFLite files only"),
    "Cut.inputs": (
        {"source": {**FILE, "path": "a.tflite"}, "cut": {"signature": "a", "inputs": ["x"]}},
        "key 'cut.inputs': for ONNX files and PyTorch models only",
    ),
    "Tensor.pad": (
        {"dims": {"n": N}, "inputs": {"x": {"pad": 1.0}}},
        "key 'inputs.x.pad': no bucket pads an input",
    ),
    "Tensor.mask": (
        {"dims": PADDED, "inputs": {"x": {"pad": 1.0, "mask": True}}},
        "key 'inputs.x.pad': a mask is padded with 0: remove the key, or mask",
    ),
    "Dim.fallback": (dim(fallback="error"), "key 'dims.n.fallback': error only goes with buckets"),
    "Dim.traffic": (dim(traffic="a.csv"), "key 'dims.n.traffic': only goes with buckets: auto"),
    "Dim.costs": (dim(costs="a.csv"), "key 'dims.n.costs': only goes with buckets: auto"),
    "Dim.max_buckets": (dim(max_buckets=2), "key 'dims.n.max_buckets': only goes with buckets: auto"),
    "Dim.code_budget": (dim(code_budget=9), "key 'dims.n.code_budget': only goes with buckets: auto"),
    "Dim.auto_as": (dim(auto_as="pad"), "key 'dims.n.auto_as': only goes with buckets: auto"),
    "Dim.auto_assume": (
        dim(**AUTO, auto_as="exact", auto_assume="measured"),
        "'dims.n.auto_assume': only goes with auto_as",
    ),
    "Bucket.range": (dim(buckets=[{"range": [2, 2]}, 2]), "unreachable: exact ones hold all its sizes"),
    "Condition.exact": (case(dim="n", exact=9), "no size of dims.n meets this: allowed 1..8"),
    "Condition.range": (case(dim="n", range=[9, 10]), "no size of dims.n meets this: allowed 1..8"),
    "Condition.multiple": (case(dim="n", multiple=9), "no size of dims.n meets this: allowed 1..8"),
    "Model.variants": ({"variants": ["a", "b", "a"]}, "key 'variants': 'a' is there twice"),
    "Model.aliases": ({"aliases": ["net"]}, "'aliases': 'net' is there twice, or the model's own name"),
    "Model.buckets": (
        {"dims": {"n": N}, "buckets": [{"n": 2}, {"n": {"exact": 2}}]},
        "key 'buckets.1': this combination is there twice",
    ),
    "Golden.inputs": (
        {"golden": {"inputs": [{"kind": "random", "seed": 1}] * 2}},
        "key 'golden.inputs.1': this test case is there twice",
    ),
    "Byoc.backends": ({"byoc": "openblas, openblas"}, "key 'byoc': backends: 'openblas' is named twice"),
    "Condition.value": (case(dim="n", value="ones"), "with one of exact, range, multiple expected"),
    "SpecialCase.all": (
        case(all=[{"dim": "n", "exact": 2}], input="x"),
        "is next to 'all': put it into that list",
    ),
    "Preprocess.resize_to": (
        of_class(resize="stretch", resize_to=9),
        "'preprocess.resize_to': only goes with resize",
    ),
    "Preprocess.pad": (
        of_class(resize="stretch", pad=1.0),
        "only goes with resize: fit_height or letterbox, not stretch",
    ),
    "LabelList.names": ({"labels": {"kind": "list", "names": ["a"]}}, "key 'labels': needs 'preprocess'"),
    "LabelFile.kind": ({"labels": {"kind": "json", "source": FILE}}, "key 'labels': needs 'preprocess'"),
    "Run.image": ({"run": {"image": FILE}}, "key 'run': needs 'preprocess'"),
    "Weights.block": (
        {"weights": {"type": "fp16", "block": 32}},
        "fp16 has no scales",
    ),
    "Byoc.take": ({"byoc": {"take": ["a"]}}, "take: no subgraph is for a library, as 'backends' is empty"),
    "Byoc.leave": ({"byoc": {"leave": ["a"]}}, "leave: no subgraph is for a library, as 'backends' is empty"),
}

# More files in which keys would change nothing, by what they have.
MORE_IDLE: dict[str, tuple[Mapping[str, Any], str]] = {
    "a range of all sizes": (case(dim="n", range=[0, 9]), "every size of dims.n meets this: 1..8; remove it"),
    "multiples that all are": (
        {"dims": {"n": {"min": 4, "max": 8, "multiple": 4}}, "special_cases": [{"dim": "n", "multiple": 2}]},
        "'special_cases.0': every size of dims.n meets this: 4..8 by 4; remove it",
    ),
    "a case after a wider one": (
        {
            "dims": {"n": N},
            "special_cases": [
                {"dim": "n", "range": [2, 6]},
                {"all": [ONES, {"dim": "n", "multiple": 3}]},
                ONES,
                {"all": [{"dim": "n", "exact": 8}, ONES]},
            ],
        },
        "'special_cases.1': never used: special case 0, which comes first, is true whenever this one is",
    ),
    "a case that is there again": (
        {"special_cases": [ONES, {"input": "y", "value": "ones"}, ONES]},
        "'special_cases.2': never used",
    ),
    "a condition after a narrower one": (
        case(all=[{"dim": "n", "exact": 4}, {"dim": "n", "multiple": 2}]),
        "'special_cases.0.all.1': true whenever the ones before it are: remove it",
    ),
    "Cut.inputs twice": ({"cut": {"inputs": ["a", "a"]}}, "key 'cut.inputs': 'a' is there twice"),
    "Byoc.take twice": (
        {"byoc": {"backends": ["openblas"], "take": ["a", "a"]}},
        "key 'byoc': take: 'a' is named twice",
    ),
}


# Keys of models that always count, or whose refusal needs the model's file or the target: who refuses there.
FACTS: dict[str, tuple[str, ...]] = {
    "names and descriptions go to the bundle": (
        "Model.description", "Model.licence", "Model.homepage", "Model.aliases",
    ),
    "files are found, and their sums checked, by kiln.sources": (
        "PypiSource.", "WheelTags.", "FileSource.", "GenerateSource.", "PythonSource.", "Model.format",
    ),
    "by the stages cut and import, with the tensors' names": (
        "Cut.", "Tensor.shape", "Tensor.dtype", "Tensor.layout", "KeptValue.", "Model.bounds", "Dim.",
        "PadTo.",
        "Bucket.exact", "Condition.input", "Condition.dim",
    ),
    "golden vectors: tests/unit/golden": (
        "RandomInput.", "Bounds.", "NormalInput.", "ImageInput.", "Golden.",
        "Preprocess.", "Run.",
    ),
    "by the type of the output: kiln.golden.limits": ("Limits.", "Tolerance."),
    "with all buckets: kiln.plan.effects": ("Model.winograd", "Model.checks"),
    "by kiln.scons.model_build, with the target": (
        "Params.", "Model.threads", "Model.precision", "Model.variants", "Byoc.backends", "Weights.type",
    ),
    "by kiln.report.budget, with the target": ("Budget.",),
    "strict without quantised tensors: kiln.lower.arithmetic": ("Model.quantised",),
    "a limit or a choice that holds whatever the model is": (
        "StageLimits.", "Weights.limit", "Model.patches",
    ),
}  # fmt: skip
BASE = {"source": FILE}
TARGETS = Path(__file__).resolve().parents[3] / "targets"
BOARD = "cortex_m4"  # a target without an operating system, with regions of memory
# By class and key of targets: the target, its changed keys, and a part of the refusal.
IDLE_OF_TARGETS: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "Target.memory": ("x86_64", {"memory": []}, "key 'memory': a hosted target's memory is its operating"),
    "Target.clock": ("x86_64", {"clock": {"hz": 1}}, "key 'clock': times are measured on a hosted target"),
    "Target.threads": (BOARD, {"threads": "pthread"}, "'pthread' on a freestanding target: none expected"),
    "Target.cuda": (BOARD, {"cuda": {"archs": ["sm_90"], "ptx": False}}, "the driver is loaded at run time"),
    "Target.features": (BOARD, {"features": ["+vfp4d16sp", "-vfp4d16sp"]}, "'vfp4d16sp' is there twice"),
    "Cuda.archs": (
        "cuda_sm90", {"cuda": {"archs": ["sm_90", "sm_90"], "ptx": True}}, "'sm_90' is there twice"
    ),
    "Libc.static": (
        "macos_arm64", {"libc": {"name": "libSystem", "version": None, "static": True}}, "true on macOS"
    ),
    "Libc.version": (
        "wasm32", {"libc": {"name": "wasi", "version": "1", "static": True}}, "'1' of wasi: null expected"
    ),
    "Vector.bits": (
        BOARD, {"vector": {"isa": "dsp", "bits": 64, "registers": 16, "fma": True, "dot": "none",
                           "in_order": True}}, "64 with isa dsp: at most 32 expected"
    ),
}  # fmt: skip
IDLE_OF_DEVICES = {
    "Device.folder": "~/a",
    "Device.contents": "run",
    "Device.trusted_keys": ["-----BEGIN PUBLIC KEY-----"],
}
