"""packings: stage that chooses the forms of weights that buckets share, where each would add a form."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.config import Target, read_target
from kiln.config.records import read
from kiln.config.slice_records import LowerConfig
from kiln.files import atomic_dir, write_json
from kiln.lower.cases import Case, cases_of
from kiln.lower.packings import limits
from kiln.lower.pipeline import machine_of
from kiln.params import store
from kiln.stages.target import PackingsStage
from kiln.tir.tuning_records import choices_of


def run(args: PackingsStage) -> None:
    """Write packings.json into the folder `args.out`."""
    target = read_target(args.target)
    config = read(LowerConfig, args.config)
    cases = [case for folder in args.sources for case in cases_of(store.load(folder))]
    with atomic_dir(args.out) as folder:
        write_json(folder / "packings.json", {"forms": packings_of(cases, config, target)})


def packings_of(cases: Sequence[Case], config: LowerConfig, target: Target) -> dict[str, list[int]]:
    """The forms that kernels may choose from, by digest of a weight, for weights that would grow too large.

    `cases`: the cases of all buckets. Empty for a GPU, whose kernels read weights unpacked.
    """
    if target.cuda is not None:
        return {}
    threads = config.threads_on(target)
    target = target.for_variant(target.variant_names[-1])  # which decides how weights are packed
    machine = machine_of(target, threads, config.winograd, choices_of(target))
    return limits((case.module for case in cases), config.name, machine)
