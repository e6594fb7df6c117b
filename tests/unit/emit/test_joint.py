"""Several models in one library: shared parameters, a shared arena, and what cannot be joined."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config.together import groups_of
from kiln.emit.joint_arena import share_arena
from kiln.emit.joint_example import example_lines, joint_example
from kiln.emit.joint_plans import join_plans
from kiln.errors import KilnError
from kiln.plan.schema import Plan
from plans import plan_of


def model(name: str, arena: int, tensors: list[bytes], **params: Any) -> tuple[Plan, bytes]:
    """A model with a step for each parameter; each parameter has 64 bytes."""
    stored = [
        {"name": f"p{at}", "offset": 64 * at, "bytes": 64, "dtype": "int8", "shape": [64]}
        for at in range(len(tensors))
    ]
    args = [{"at": "params", "offset": 64 * at, "bytes": 64} for at in range(len(tensors))]
    steps = [{"kernel": f"k{at}", "extent": 1, "label": "", "args": [arg]} for at, arg in enumerate(args)]
    plan = plan_of(
        name=name,
        params={"bytes": 64 * len(tensors), "storage": "embedded", "tensors": stored, **params},
        buckets=[{"arena_bytes": arena, "steps": steps}],
    )
    return plan, b"".join(tensors)


A, B, C = b"a" * 64, b"b" * 64, b"c" * 64


def test_equal_parameters_stand_once() -> None:
    joined = join_plans([model("one", 0, [A, B]), model("two", 0, [C, A])], "both")
    assert joined.payload == A + B + C
    offsets = [[step.args[0].offset for step in plan.buckets[0].steps] for plan in joined.plans]  # type: ignore[union-attr]
    assert offsets == [[0, 64], [128, 0]]
    assert {plan.params.image for plan in joined.plans} == {"both_params_image"}
    assert len({plan.model_hash for plan in joined.plans}) == 1
    assert {plan.params.bytes for plan in joined.plans} == {192}


def test_models_that_run_at_the_same_time_share_no_byte() -> None:
    plans = [model(name, size, [])[0] for name, size in (("a", 100), ("b", 1000), ("c", 500))]
    alone = share_arena(plans, [])[0]
    assert alone.bytes == 1000 and set(alone.offsets.values()) == {0}
    (pair,) = share_arena(plans, [["a", "b"]])
    assert pair.offsets == {"b": 0, "c": 0, "a": 1024} and pair.bytes == 1124
    (all_three,) = share_arena(plans, [["a", "b", "c"]])
    assert all_three.offsets == {"b": 0, "c": 1024, "a": 1536} and all_three.bytes == 1636
    (chain,) = share_arena(plans, [["a", "c"], ["c", "b"]])
    assert chain.offsets == {"b": 0, "c": 1024, "a": 0}


def test_an_arena_in_two_regions() -> None:
    regions = [
        {"name": "fast", "bytes": 64, "section": ".f"},
        {"name": "slow", "bytes": 128, "section": ".s"},
    ]
    plans = [
        plan_of(name=name, regions=regions, buckets=[{"steps": [], "arena_bytes": 64, "more_arenas": [more]}])
        for name, more in (("a", 128), ("b", 64))
    ]
    fast, slow = share_arena(plans, [["a", "b"]])
    assert (fast.name, fast.bytes, slow.name, slow.bytes, slow.section) == ("fast", 128, "slow", 192, ".s")


def test_what_cannot_be_joined_is_one_line() -> None:
    one = model("one", 0, [A])
    for other, message in (
        (
            model("two", 0, [A], storage="file"),
            "model 'two': params.storage is file, of model 'one' embedded",
        ),
        (
            model("two", 0, [A], parts=[{"name": "q", "bytes": 64, "section": ".q"}]),
            "model 'two': its parameters are split over regions",
        ),
    ):
        with pytest.raises(KilnError) as caught:
            join_plans([one, other], "both")
        assert message in str(caught.value) and "\n" not in str(caught.value)
    threaded = one[0].model_copy(update={"name": "two", "threads": "pthread"}), A
    with pytest.raises(KilnError, match="model 'two': threads is pthread, of model 'one' none"):
        join_plans([one, threaded], "both")
    for text, message in (
        ("a+x", "'x', allowed: a, b"),
        ("a", "at least two different"),
        ("a+a", "at least two"),
    ):
        with pytest.raises(KilnError, match=message):
            groups_of(text, ["a", "b"])
    assert groups_of("a+b,b+a", ["a", "b"]) == [["a", "b"], ["b", "a"]]


HEADER = """/* a.h: a model
 *
 * Example:
 *
 *     #include "a.h"
 *
 *     static _Alignas(A_ARENA_ALIGN) unsigned char arena[A_ARENA_BYTES];
 *     static float input_0[A_INPUT_0_ELEMENTS];
 *
 *     int main(void) {
 *         kiln_config config = {.arena = arena, .arena_bytes = sizeof arena, .state = state};
 *         return 0;
 *     }
 *
 * After an error, kiln_error(&session) says more.
 */
int other(void) {
}
"""


def test_the_example_gives_each_model_its_part_of_the_arena() -> None:
    assert example_lines(HEADER)[0] == '#include "a.h"' and example_lines(HEADER)[-1] == "}"
    shared = "\n".join(joint_example("duo", {"a": HEADER, "b": HEADER.replace("a.h", "b.h")}, True))
    assert shared.count("unsigned char arena[") == 1 and "arena[DUO_ARENA_BYTES + 1];" in shared
    assert ".arena = arena + DUO_ARENA_OF_B, .arena_bytes = B_ARENA_BYTES, .state = state}" in shared
    assert shared.count("static int run_") == 2 and "return run_a() != 0 || run_b() != 0;" in shared
    # Regions have names and sections of their own: each model keeps the arenas of its own example.
    apart = "\n".join(joint_example("duo", {"a": HEADER}, False))
    assert (
        "        static" not in apart and "    static _Alignas(A_ARENA_ALIGN) unsigned char arena[A_" in apart
    )
    assert ".arena = arena, .arena_bytes = sizeof arena" in apart and "DUO_ARENA" not in apart
