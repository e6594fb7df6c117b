"""Plans of models that share a library: one sequence of parameters, in which equal ones occur once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kiln.errors import KilnError
from kiln.plan.lifetimes import aligned
from kiln.plan.schema import Plan, StoredTensor
from kiln.plan.split import moved_buckets, moved_states


@dataclass(frozen=True)
class JointPlans:
    """The models' plans, whose parameters are all of `payload`."""

    plans: list[Plan]
    payload: bytes


def join_plans(models: Sequence[tuple[Plan, bytes]], name: str) -> JointPlans:
    """Plans and parameters of models → plans that read one sequence of parameters, called `name`.

    Raises KilnError, with the model's name, for a plan that cannot be in one library with the others.
    """
    first = models[0][0]
    for plan, _ in models:
        _check(plan, first)
    payload, offsets, stored = bytearray(), dict[bytes, int](), list[StoredTensor]()
    moves: list[dict[int, int]] = []
    for plan, content in models:
        moved: dict[int, int] = {}
        for tensor in plan.params.tensors:
            data = content[tensor.offset : tensor.offset + tensor.bytes]
            key = hashlib.sha256(data).digest()
            if key not in offsets:
                offsets[key] = len(payload)
                stored.append(tensor.model_copy(update={"offset": len(payload)}))
                payload += data + bytes(aligned(len(data)) - len(data))
            moved[tensor.offset] = offsets[key]
        moves.append(moved)
    digest = hashlib.sha256(
        "\0".join(plan.model_hash for plan, _ in models).encode() + bytes(payload)
    ).hexdigest()
    image = f"{name}_params_image" if payload and first.params.storage != "file" else None
    plans = []
    for (plan, _), moved in zip(models, moves, strict=True):
        params = plan.params.model_copy(update={"bytes": len(payload), "tensors": stored, "image": image})
        update = {
            "params": params, "model_hash": digest,
            "buckets": moved_buckets(plan.buckets, moved), "states": moved_states(plan.states, moved),
        }  # fmt: skip
        plans.append(plan.model_copy(update=update))
    return JointPlans(plans, bytes(payload))


def _check(plan: Plan, first: Plan) -> None:
    """Raise KilnError for a plan that cannot share a library with `first`."""
    where = f"joint: model '{plan.name}'"
    if plan.cuda is not None:
        raise KilnError(f"{where}: its kernels run on a GPU; models for one library run on the processor")
    if plan.params.parts:
        raise KilnError(
            f"{where}: its parameters are split over regions of the target's memory; let one region hold "
            "parameters"
        )
    libraries = sorted({kernel.external.backend for kernel in plan.kernels if kernel.external is not None})
    if libraries:
        raise KilnError(f"{where}: {', '.join(libraries)} computes parts of it; build it with byoc=none")
    for key in ("storage", "section"):
        mine, theirs = getattr(plan.params, key), getattr(first.params, key)
        if mine != theirs:
            raise KilnError(
                f"{where}: params.{key} is {mine}, of model '{first.name}' {theirs}: they share one image, "
                "so all need the same"
            )
    if plan.threads != first.threads:
        raise KilnError(
            f"{where}: threads is {plan.threads}, of model '{first.name}' {first.threads}: all need the same"
        )
