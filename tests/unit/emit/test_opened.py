"""What a library makes ready at open: once in a process, before any run, and its errors reach the caller."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from c_programs import run
from emitted import KERNELS, EmittedProgram, Plan, make_plan
from kiln.byoc.init_once import guard
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan

# The first kernel of the plan, with its weights in a static of its own: they are not read again.
OPENED = (
    """
#include <stdint.h>
int32_t made, fails, breaks;
static float kept[3];
static int32_t SYMBOL_make(const float *w) {
    for (int i = 0; i < 3; i++)
        kept[i] = w[i];
    made++;
    return fails;
}
int32_t SYMBOL(const float *x, const float *w, float *t, int32_t begin, int32_t end) {
    (void)w;
    for (int32_t b = begin; b < end; b++)
        for (int i = 0; i < 3; i++)
            t[3 * b + i] = x[3 * b + i] * kept[i];
    return breaks;
}
"""
    + guard(1)
).replace("SYMBOL", "NAME_scale") + re.sub(r"void NAME_scale.*?\n}", "", KERNELS, flags=re.DOTALL)

USE = """
#include <pthread.h>
#include <stdio.h>
#include "tiny.h"
extern int32_t made, fails, breaks;
static _Alignas(64) unsigned char arena[4][(TINY_ARENA_BYTES + 63) / 64 * 64];
static char text[200];
static const char *said(kiln_session *session) {
    kiln_detail_text(kiln_error(session), text, sizeof text);
    return text;
}
static void *open_and_run(void *memory) {
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    static const int8_t shift = 5;
    float y[6];
    kiln_session session;
    kiln_config config = {.arena = memory, .arena_bytes = sizeof arena[0]};
    kiln_status status = kiln_open(&session, &tiny, &config);
    if (status == KILN_OK)
        status = tiny_run(&session, 2, x, &shift, y);
    return status == KILN_OK && y[0] == 16 && y[5] == 22 ? memory : NULL;
}
int main(void) {
    kiln_session session;
    kiln_config config = {.arena = arena[0], .arena_bytes = sizeof arena[0]};
    fails = 6;
    const kiln_status refused = kiln_open(&session, &tiny, &config);
    printf("%d %d %s\\n", refused == KILN_LIBRARY, (int)made, said(&session));
    fails = made = 0;
    pthread_t threads[4];
    int right = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, open_and_run, arena[i]);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        right += result == arena[i];
    }
    printf("%d right, made %d\\n", right, (int)made);
    static const float x[6];
    static const int8_t shift;
    float y[6];
    breaks = 9;
    kiln_open(&session, &tiny, &config);
    const kiln_status broken = tiny_run(&session, 2, x, &shift, y);
    printf("%d %s\\n", broken == KILN_LIBRARY, said(&session));
    return 0;
}
"""


def opened_plan(threads: str) -> Plan:
    plan = make_plan(threads=threads)
    plan["kernels"][0]["external"] = {"backend": "mine", "key": "rows 3", "opens": [1], "source": ""}
    return plan


@pytest.mark.parametrize("threads", ["pthread", "none"])
def test_it_is_made_once_and_errors_are_named(threads: str, tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path, "pthread")
    project.add(opened_plan(threads), kernels=OPENED)
    assert run([str(project.program(USE))]).splitlines() == [
        "1 1 mine: rows 3: error 6 of the library that computes it",
        "4 right, made 1",
        "1 step 0: error 9 of the library that computes it",
    ]


def test_a_plan_without_libraries_has_no_word_of_them() -> None:
    (source,) = [
        text for name, text in emit(parse_plan(make_plan()), bytes(76)).items() if name.endswith("_plan.c")
    ]
    assert "open_libraries" not in str(source) and "int32_t status" not in str(source)


def test_what_is_made_ready_is_made_of_parameters() -> None:
    plan = opened_plan("none")
    plan["kernels"][0]["external"]["opens"] = [0]
    with pytest.raises(KilnError, match="kernel 'tiny_scale': opens"):
        emit(parse_plan(plan), bytes(76))
