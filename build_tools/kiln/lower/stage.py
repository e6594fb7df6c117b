"""lower: stage that makes the kernels and steps of a model, or of one of its buckets, for one target."""

from __future__ import annotations

import tvm

from kiln.byoc.passes import external_passes
from kiln.config import read_target
from kiln.config.library_choices import LibraryChoices
from kiln.config.records import read
from kiln.config.slice_records import LowerConfig
from kiln.files import atomic_dir, read_json, write_json
from kiln.lower import arithmetic, target_check
from kiln.lower.cases import cases_of
from kiln.lower.packings_stage import packings_of
from kiln.lower.patch_choice import ram_limit
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import LiftedParameter, LoweredBucket, LoweredCase
from kiln.lower.steps import Steps
from kiln.lower.target_trial import check_together
from kiln.params import store, tensors
from kiln.stages.target import LowerStage
from kiln.tir.tuning_records import NotedRecords, choices_of


def run(args: LowerStage) -> None:
    """Lower all cases of a bucket; write functions.json, params.safetensors, steps.json into `args.out`."""
    config = read(LowerConfig, args.config)
    target = read_target(args.target)
    target_check.check(target)
    check_together(target)
    threads = config.threads_on(target)
    choices = NotedRecords(choices_of(target))
    external = None
    if args.byoc:
        external = external_passes(read(LibraryChoices, args.byoc), target, threads, config.precision)
    texts: dict[str, str] = {}
    values: store.Tensors = {}
    cases: list[LoweredCase] = []
    bucket_cases = cases_of(store.load(args.source))
    limit, marked = None, False
    if config.patches == "auto":
        limit = ram_limit(target, [config.budget.ram_bytes])
    packings = (
        read_json(args.packings)["forms"] if args.packings else packings_of(bucket_cases, config, target)
    )
    for number, case in enumerate(bucket_cases):
        dump = args.dump and (args.dump / case.name if case.name else args.dump)
        lowering = Lowering(
            config.name, target, threads, config.winograd, choices, external, config.precision, config.checks,
            packings, limit,
        )  # fmt: skip
        steps = lower(case.module, lowering, dump)
        steps = arithmetic.mark(steps, target_check.has_floats(target))
        if config.quantised == "strict":
            arithmetic.require_integers(steps, config.name, arithmetic.nodes_of(case.module))
            marked |= any(step.arithmetic is not None for step in steps.steps)
        prefix = f"{number}/"
        texts |= {symbol: _text(steps, symbol) for symbol in steps.functions}
        values |= {prefix + name: value for name, value in {**steps.params, **case.constants}.items()}
        cases.append(
            LoweredCase(
                name=case.name, params=prefix, when=case.when, lifted=_lifted(case.module),
                patches=steps.patched, **dict(steps.record()),
            )
        )  # fmt: skip
    if config.quantised == "strict":
        arithmetic.require_quantised(marked, config.name)
    with atomic_dir(args.out) as folder:
        store.save_functions(texts, folder)
        tensors.save(values, folder / "params.safetensors")
        bucket = LoweredBucket(
            cases=cases,
            threads=threads,
            variants=target_check.features_by_variant(target),
            untuned=choices.missing or None,
            subgraphs=sorted(external.subgraphs) if external else None,
        )
        write_json(folder / "steps.json", bucket.model_dump())


def _text(steps: Steps, symbol: str) -> str:
    """A function of `steps` as JSON."""
    return steps.texts.get(symbol) or str(tvm.ir.save_json(steps.functions[symbol]))


def _lifted(module: tvm.IRModule) -> dict[str, LiftedParameter]:
    """Parameters of `module` before lowering: by name the size in bytes and the SHA-256 of the content."""
    _, params = store.split(module)
    return {
        name: LiftedParameter(bytes=value.nbytes, sha256=store.digest(value))
        for name, value in params.items()
    }
