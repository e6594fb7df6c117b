"""Estimates from machine code: the table that the command writes, and the parser of listings."""

from __future__ import annotations

from . import issue_model

# Instructions of a loop as nvdisasm prints them: the second line of each has the upper and control bits.
LISTING = """\
.text.kernel:
.L_x_0:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;      /* 0x0000000402047981 */
                                                                         /* 0x000ea2000c1e1d00 */
        /*0010*/                   HMMA.16816.F32 R8, R4, R6, R8 ;       /* 0x000000060408723c */
                                                                         /* 0x004fde0000001808 */
        /*0020*/              @P0 BRA `(.L_x_0) ;                        /* 0xfffffffc00e00947 */
                                                                         /* 0x000fea000383ffff */
"""


def test_a_row_is_written_in_place_of_its_old_one() -> None:
    first, second = issue_model.CASES[0], issue_model.CASES[3]
    table = issue_model.with_row("", "own:fp32", ["9", "9 us", "9 us", "9 us"])
    for case in (second, first):
        table = issue_model.with_row(table, case, ["1", "1 us", "1 us", "1 us"])
    table = issue_model.with_row(table, second, ["7", "7 us", "7 us", "7 us"])
    head, _, *rows = table.splitlines()
    assert head.split("|")[1].strip() == "case" and len(rows) == 3
    assert [row.split("|")[1].strip() for row in rows] == [first, second, "own:fp32"]
    assert rows[1] == f"| {second} | 7 | 7 us | 7 us | 7 us |"


def test_the_page_has_the_marks_of_the_table() -> None:
    text = issue_model.PAGE.read_text(encoding="utf-8")
    _, after = text.split(issue_model.BEGIN)
    assert issue_model.END in after


def test_a_loop_waits_for_what_it_loads() -> None:
    kernel = issue_model._parsed(LISTING)["kernel"]
    assert [one.name for one in kernel.product()] == ["LDG.E.128", "HMMA.16816.F32", "BRA"]
    load, product, _ = kernel.product()
    assert load.sets[0] == 2 and product.waits >> 2 & 1, (
        "the product waits for the scoreboard that the load sets"
    )
    assert issue_model.multiplied(product) == 16 * 8 * 16
    assert issue_model.cycles(kernel.product()) > issue_model.LATENCY["LDG"]
