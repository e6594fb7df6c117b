"""Make folders with all that a machine with a GPU needs to test and time bundles.

    python tests/gpu/pack.py OUT [--limit MIB] [--bundle NAME=FOLDER]... [CASE]...

That machine needs no network, Kiln or compiler: only Python with NumPy, and NVIDIA's driver.
compute-sanitizer, ncu and PyTorch are used if they are there. CASE is MODEL, MODEL:PRECISION or
MODEL:PRECISION:BACKENDS, built for the target cuda_sm90; MODEL may be an .onnx file, and MODEL@N is the model
for batches of N; without any, CASES. --bundle adds a bundle that is there already, --candidates a folder of
candidates of the goal `tune`; without any of them the candidates of TUNED are built. All is divided into
folders part0, part1, ... of at most MIB MiB each; larger parameters are files in pieces, which
lie in several parts. `python3 part0/on_gpu.py` runs one part, with the pieces in the parts next to it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "build_tools"))

from kiln.config import load_target  # noqa: E402
from kiln.device.bundle import Bundle, open_bundle  # noqa: E402
from kiln.device.check.outside import outside  # noqa: E402
from kiln.device.vector_files import encode, encode_shapes  # noqa: E402
from kiln.sources import generators  # noqa: E402

TARGET, FILED = "cuda_sm90", "cuda_sm90_file"
CASES = (
    [
        f"{model}:{precision}"
        for model in ("resnet18", "mobilenet_v2", "vit_tiny", "minilm_l6", "resnet50")
        for precision in ("fp32", "tf32", "fp16", "bf16")
    ]
    + ["resnet", "magika", "resnet50:fp16:cudnn,cublas", "minilm_l6:fp16:cublas", "vit_tiny:fp16:cutlass"]
    + [
        f"{model}:{precision}:triton"
        for model in ("mobilenet_v2", "vit_tiny", "minilm_l6", "resnet50")
        for precision in ("fp16", "bf16")
    ]
)
CASES += [
    f"{model}@{batch}:{precision}{backend}"
    for model in ("mobilenet_v2", "vit_tiny", "minilm_l6", "resnet50")
    for batch in (8, 32)
    for precision in ("fp16", "bf16")
    for backend in ("", ":triton")
]
# What `tune` builds candidates for.
TUNED = ("resnet50:fp16", "vit_tiny:fp16", "minilm_l6:fp16", "mobilenet_v2:fp16", "resnet50:bf16")
CONVERTED = Path(__file__).with_name("time_converted.c")
# Kiln's own modules that on_gpu.py imports there.
MODULES = ("arrays.py", "errors.py", "golden/compare.py", "device/vector_files.py")


def build(case: str, work: Path, goal: str | None = None) -> Path:
    """Build a case; returns the folder of its bundle, or with the goal `tune` that of its candidates.

    Parameters are a file: the two programs of a case share them.
    """
    model, precision, backends, *_ = [*case.split(":"), "", ""]
    words = [f"target={FILED}", f"model={model}", *([goal] if goal else [])]
    words += [f"precision={precision}"] if precision not in ("", "fp32") else []
    words += [f"byoc={backends}"] if backends else []
    folder = work / _name(case)
    folder.mkdir(parents=True, exist_ok=True)
    if model.endswith(".onnx"):
        words[1] = f"model={Path(model).resolve()}"
        model = Path(model).stem
    elif "@" in model:
        name, batch = model.split("@")
        words[1] = f"model={batched(name, int(batch), folder)}"
        model = words[1].removeprefix("model=")
    (folder / "targets").mkdir(exist_ok=True)
    text = (REPOSITORY / "targets" / f"{TARGET}.yaml").read_text(encoding="utf-8")
    changed = text.replace("params_storage: embedded", "params_storage: file")
    assert changed != text
    (folder / "targets" / f"{FILED}.yaml").write_text(changed, encoding="utf-8")
    subprocess.run([str(REPOSITORY / "kiln"), *words], cwd=folder, check=True)
    build_folder = folder / "build"
    return (
        build_folder / ".stages" / FILED / model / "candidates"
        if goal == "tune"
        else build_folder / FILED / model
    )


def batched(model: str, batch: int, folder: Path) -> str:
    """Write a model for batches of one size below `folder`; returns its name.

    `model` is one of Kiln's that a generator writes. If its file has a batch of one, the new file has another
    first size of input and output; a constant that is joined with the input is repeated.
    """
    entries = yaml.safe_load((REPOSITORY / "models" / f"{model}.yaml").read_text(encoding="utf-8"))
    name = f"{model}_batch{batch}"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    if "batch" in entries.get("dims", {}):
        entries["dims"]["batch"] = {"min": batch, "max": batch, "buckets": [batch]}
    else:
        source = entries["source"]
        network = onnx.load_from_string(generators.generate(source["generator"], source["seed"], None))
        for port in [*network.graph.input, *network.graph.output]:
            port.type.tensor_type.shape.dim[0].dim_value = batch
        joined = {name for node in network.graph.node if node.op_type == "Concat" for name in node.input}
        for constant in network.graph.initializer:
            if constant.name in joined:
                value = np.repeat(onnx.numpy_helper.to_array(constant), batch, axis=0)
                constant.CopyFrom(onnx.numpy_helper.from_array(value, constant.name))
        onnx.save(network, folder / f"{name}.onnx")
        (port,) = entries["inputs"].values()
        port["shape"][0] = batch
        entries["source"] = {"kind": "file", "path": f"../{name}.onnx"}
        entries["golden"] = {"inputs": [{"kind": "normal", "seed": 1}]}
        entries = {key: value for key, value in entries.items() if key not in ("preprocess", "labels", "run")}
    text = yaml.safe_dump(entries, sort_keys=False)
    (folder / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def prepare(name: str, bundle: Bundle, out: Path, work: Path) -> int:
    """Write the programs, inputs and expected outputs of a bundle into `out`; returns their bytes."""
    target, vectors, golden = load_target(TARGET), bundle.vectors(), bundle.golden()
    out.mkdir(parents=True)
    for main in ("run_vectors", "time_runs", CONVERTED):
        program = bundle.link_program(target, work / name, main)
        shutil.copy(program, out / (main if isinstance(main, str) else main.stem))
    for path in [*bundle.library_files().values(), *([bundle.params] if bundle.params.is_file() else [])]:
        shutil.copy(path, out / path.name)
    (out / "inputs.bin").write_bytes(encode([vector.inputs for vector in vectors]))
    (out / "expected.bin").write_bytes(encode([vector.outputs for vector in vectors]))
    shapes = [case.shapes for case in outside(golden)]
    (out / "refused.bin").write_bytes(encode_shapes(shapes, len(vectors[0].inputs)))
    entries = [
        {"name": vector.name, "outputs": [o.model_dump() for o in vector.output_entries]}
        for vector in vectors
    ]
    shared = {path.name for path in out.iterdir()} & {"params.bin"}
    case = {
        "model": bundle.name,
        "params": sorted(shared),
        "vectors": entries,
        "tolerance": bundle.tolerance(),
    }
    (out / "case.json").write_text(json.dumps(case, indent=1), encoding="utf-8")
    return sum(path.stat().st_size for path in out.iterdir())


def pieces(folder: Path, limit: int) -> dict[str, int]:
    """Cut the parameters of a bundle into files of at most `limit` bytes; returns the bytes of each by name.

    A bundle of at most `limit` bytes stays whole.
    """
    params = folder / "params.bin"
    if sum(path.stat().st_size for path in folder.iterdir()) <= limit or not params.is_file():
        return {}
    piece_sizes: dict[str, int] = {}
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    with params.open("rb") as stream:
        while content := stream.read(limit):
            name = f"params.bin.{len(piece_sizes)}"
            (folder / name).write_bytes(content)
            piece_sizes[name] = len(content)
    params.unlink()
    (folder / "case.json").write_text(
        json.dumps({**case, "pieces": len(piece_sizes)}, indent=1), encoding="utf-8"
    )
    return piece_sizes


def divide(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Names in parts of at most `limit` bytes each, largest first; a larger one has a part of its own."""
    parts: list[tuple[int, list[str]]] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        at = next((i for i, (size, _) in enumerate(parts) if size + sizes[name] <= limit), len(parts))
        size, names = parts.pop(at) if at < len(parts) else (0, [])
        parts.insert(at, (size + sizes[name], [*names, name]))
    return [names for _, names in parts]


def main(words: list[str]) -> None:
    """Make the pack that the command line `words` describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--limit", type=int, default=60, metavar="MIB")
    parser.add_argument("--bundle", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--candidates", action="append", default=[], metavar="NAME=FOLDER")
    args = parser.parse_args(words)
    subjects = args.cases or args.bundle or args.candidates
    bundles, tuned = (
        {name: Path(folder) for name, folder in (one.split("=", 1) for one in named)}
        for named in (args.bundle, args.candidates)
    )
    work, made = args.out / "work", args.out / "made"
    shutil.rmtree(made, ignore_errors=True)
    failed: list[str] = []
    for built, cases, goal in (
        (bundles, args.cases if subjects else CASES, None),
        (tuned, () if subjects else TUNED, "tune"),
    ):
        for case in cases:
            try:
                built[_name(case)] = build(case, work, goal)
            except subprocess.CalledProcessError:  # its message is above; the others are packed
                failed.append(" ".join([case, *([goal] if goal else [])]))
    # By what a part contains, case/<name>, pieces/<name>/<file> or candidates/<name>: its bytes.
    sizes: dict[str, int] = {}
    for name, bundle in bundles.items():
        folder = made / "cases" / name
        total = prepare(name, open_bundle(bundle), folder, work / "linked")
        cut = pieces(folder, args.limit << 20)
        for piece in cut:
            (made / "pieces" / name).mkdir(parents=True, exist_ok=True)
            shutil.move(folder / piece, made / "pieces" / name / piece)
            sizes[f"pieces/{name}/{piece}"] = cut[piece]
        sizes[f"cases/{name}"] = total - sum(cut.values())
    for name, folder in tuned.items():
        shutil.copytree(folder, made / "candidates" / name)
        sizes[f"candidates/{name}"] = sum(path.stat().st_size for path in folder.iterdir())
    _write_parts(args.out, made, sizes, args.limit << 20)
    shutil.rmtree(made, ignore_errors=True)
    if failed:
        sys.exit(f"not built, and not in the pack: {', '.join(failed)}")


def _name(case: str) -> str:
    """The name of a case's folder."""
    model, *options = case.split(":")
    return ".".join([Path(model).stem if model.endswith(".onnx") else model, *options]).replace(",", "+")


def _write_parts(out: Path, made: Path, sizes: dict[str, int], limit: int) -> None:
    """Move the files in `made` into folders of at most `limit` bytes, each with the program that runs it."""
    for old in out.glob("part[0-9]*"):
        shutil.rmtree(old)
    for number, names in enumerate(divide(sizes, limit)):
        part_folder = out / f"part{number}"
        for name in names:
            (part_folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made / name, part_folder / name)
        shutil.copy(Path(__file__).with_name("on_gpu.py"), part_folder / "on_gpu.py")
        for module in MODULES:
            to = part_folder / "kiln" / module
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / "build_tools" / "kiln" / module, to)
        print(f"{part_folder}: {sum(sizes[name] for name in names) / 2**20:.1f} MiB: {', '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1:])
