"""Test the models of a joint library: each on its golden vectors, with the checks of its own bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

from kiln.config import read_target
from kiln.device.check.runners.remote import chosen_runner
from kiln.device.check.test import check
from kiln.files import read_json, write_json
from kiln.stages.use import DeviceTestStage, JointTestStage


def run(args: JointTestStage) -> None:
    """Print the results of each model; leave with status 1 and one line when any failed."""
    target = read_target(args.target)
    results = []
    for bundle in args.bundles:
        out = args.work / f"{bundle.name}.json"
        stage = DeviceTestStage(
            bundle=_with_joint_library(bundle, args.joint, args.work),
            target=args.target,
            work=args.work / f"{bundle.name}.programs",
            timeout=args.timeout,
            out=out,
        )
        with chosen_runner(target, args.device, bundle.name) as runner:
            check(stage, target, runner)
        results.append(read_json(out))
    write_json(args.out, {"format": 1, "models": results})


def _with_joint_library(bundle: Path, joint: Path, work: Path) -> Path:
    """A copy of a model's bundle in `work`, with the headers, library and parameters of the joint one."""
    copy = work / bundle.name
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "lib").mkdir(parents=True)
    shutil.copytree(bundle / "golden", copy / "golden")
    shutil.copytree(joint / "include", copy / "include")
    shutil.copyfile(bundle / "manifest.json", copy / "manifest.json")
    shutil.copyfile(joint / "lib" / f"lib{joint.name}.a", copy / "lib" / f"lib{bundle.name}.a")
    if (joint / "params.bin").is_file():
        shutil.copyfile(joint / "params.bin", copy / "params.bin")
    return copy
