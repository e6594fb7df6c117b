"""lower: kernels and steps of a model for one target."""

from __future__ import annotations

import argparse
from pathlib import Path

import tvm
from safetensors import numpy as safetensors

from kiln.config import Target
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.kernels import known
from kiln.kernels.pipeline import lower
from kiln.params import store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", dest="source", type=Path, required=True, help="folder of the simplify stage")
    parser.add_argument("--target", type=Path, required=True, help="target.json")
    parser.add_argument("--config", type=Path, required=True, help="slice of the model's configuration")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dump", type=Path, help="write the IR after each pass into this folder")


def run(args: argparse.Namespace) -> None:
    config = read_json(args.config)
    target = Target.model_validate(read_json(args.target))
    known.check(target)
    threads = config.get("threads") or target.threads
    steps = lower(store.load(args.source), config["name"], target, threads, args.dump)
    interface = read_json(args.source / "interface.json")
    with atomic_dir(args.out) as folder:
        module = tvm.IRModule(dict(steps.functions))
        atomic_write(folder / "module.json", tvm.ir.save_json(module))
        atomic_write(folder / "params.safetensors", safetensors.save(steps.params))
        write_json(folder / "steps.json", {**steps.describe(), "interface": interface, "threads": threads})
