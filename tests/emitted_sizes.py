"""Plans with computed axes and with special cases, and C programs that run them."""

from __future__ import annotations

import copy
from typing import Any

from emitted import Plan, make_plan

# A special case has one step, which writes a number of its own: the output tells which steps ran.
MARK = """
#include <stdint.h>
void tiny_mark(float *y, int32_t mark, int64_t n) {
    for (int64_t i = 0; i < 3 * n; i++)
        y[i] = (float)mark;
}
"""


def case_plan() -> Plan:
    """Bucket Some (batch 3..8) has cases for zero = 1, x = 0 and x = w, which fits no batch but 1."""
    plan = copy.deepcopy(make_plan())
    mark = {
        "symbol": "tiny_mark",
        "parallel": False,
        "ops": [],
        "args": [
            {"dtype": "float32", "const": False},
            {"dtype": "int32", "const": True, "scalar": True},
            {"dtype": "int64", "const": True, "scalar": True},
        ],
    }
    plan["kernels"].append(mark)
    whens: list[tuple[str, int, Any]] = [
        ("shift1", 1, "ones"),
        ("zeros", 0, "zeros"),
        ("w", 0, {"offset": 64, "bytes": 12}),
    ]
    for number, (name, index, value) in enumerate(whens):
        some = [{"dim": "batch", "min": 2, "max": 12}, {"dim": "batch", "multiple": 4}]
        sizes = some if name == "zeros" else []
        args = [
            {"at": "output", "index": 0, "offset": 0},
            {"at": "dim", "expr": 100 + number},
            {"at": "dim", "expr": "batch"},
        ]
        step = {"kernel": "tiny_mark", "extent": 0, "args": args, "label": "mark"}
        plan["buckets"].append(
            {
                "name": f"Some_{name}",
                "dims": plan["buckets"][1]["dims"],
                "arena_bytes": 0,
                "steps": [step],
                "tensors": [],
                "when": {"bucket": 1, "all": [*sizes, {"input": index, "value": value}]},
            }
        )
    return plan


CASES = """
#include <stdio.h>
#include "tiny.h"
static _Alignas(64) unsigned char arena[TINY_ARENA_BYTES];
static kiln_session session;
static void try_it(int64_t batch, const float *x, int8_t shift) {
    static float y[TINY_OUTPUT_0_ELEMENTS];
    kiln_plan_result plan;
    const kiln_status planned = tiny_plan(batch, &plan, NULL);
    const kiln_status ran = tiny_run(&session, batch, x, &shift, y);
    printf("%d %d %s %u %g\\n", planned, ran, tiny.buckets[session.bucket].name, plan.bucket,
           (double)y[3 * batch - 1]);
}
int main(void) {
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    static float x[TINY_INPUT_0_ELEMENTS];
    if (kiln_open(&session, &tiny, &config) != KILN_OK)
        return 1;
    try_it(4, x, 0);
    try_it(6, x, 0);
    try_it(4, x, 1);
    try_it(10, x, 1);
    x[12] = 1.0f; /* behind a batch of 4 */
    try_it(4, x, 0);
    try_it(6, x, 0);
    x[11] = -0.0f;
    try_it(4, x, 5);
    return 0;
}
"""
CASES_PRINT = """0 0 Some_zeros 1 101
0 0 Some 1 0
0 0 Some_shift1 1 100
0 0 ten 2 2
0 0 Some_zeros 1 101
0 0 Some 1 0
0 0 Some 1 10
"""


def derived_plan() -> Plan:
    """x (batch, 3) and zero (batch // 2) give y (batch + batch % 4, 3); tasks and rows are expressions."""
    plan = copy.deepcopy(make_plan())
    plan["inputs"][1]["shape"] = [["//", "batch", 2]]
    plan["outputs"][0]["shape"] = [["+", "batch", ["%", "batch", 4]], 3]
    for bucket in plan["buckets"]:
        scale, shift = bucket["steps"]
        scale["extent"] = ["min", ["+", "batch", 0], ["*", "batch", 2]]
        shift["args"][3]["expr"] = ["max", ["//", ["*", "batch", "batch"], "batch"], ["-", "batch", 1]]
    return plan


DERIVED = """
#include <stdio.h>
#include "tiny.h"
int main(void) {
    static _Alignas(64) unsigned char arena[TINY_ARENA_BYTES];
    static float x[TINY_INPUT_0_ELEMENTS], y[TINY_OUTPUT_0_ELEMENTS];
    static const int8_t shift[TINY_INPUT_1_ELEMENTS] = {5};
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    kiln_session session;
    kiln_plan_result plan;
    char text[200];
    for (int i = 0; i < 36; i++)
        x[i] = (float)i;
    if (kiln_open(&session, &tiny, &config) != KILN_OK)
        return 1;
    for (int64_t batch = 6; batch <= 14; batch += 4) {
        if (tiny_run(&session, batch, x, shift, y) == KILN_OK && tiny_plan(batch, &plan, NULL) == KILN_OK)
            printf("%d %d %d: %g\\n", (int)plan.dims[0], (int)plan.dims[1], (int)plan.dims[2], (double)y[17]);
        kiln_detail_text(kiln_error(&session), text, sizeof text);
        puts(text);
    }
    int64_t shape[] = {6, 3}, halves[] = {4}, rows[] = {6, 3};
    DLTensor in[] = {kiln_bind(&tiny.inputs[0], shape, x), kiln_bind(&tiny.inputs[1], halves, shift)};
    const DLTensor out = kiln_bind(&tiny.outputs[0], rows, y);
    for (int i = 0; i < 2; i++) {
        (void)kiln_run(&session, in, &out);
        kiln_detail_text(kiln_error(&session), text, sizeof text);
        puts(text);
        in[1].shape[0] = 3;
    }
    return 0;
}
"""
DERIVED_PRINTS = [
    "6 3 8: 44",
    "session: no error",
    "10 5 12: 44",
    "session: no error",
    "x:0 axis 0: 14, allowed multiples of 2 in 2..12",
    "zero axis 0: 4, allowed 3 to agree with other axes",
    "y axis 0: 6, allowed 8 to agree with other axes",
]
