"""The table of docs/tflite.md: by builtin operator, how many cases pass, and why others are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ai_edge_litert import schema_py_generated as schema

from ..onnx_nodes.results import REFUSED, Result, reason_of
from .files import OperatorCase

PAGE = Path(__file__).resolve().parents[3] / "docs/tflite.md"
_BEGIN, _END = "<!-- begin of the table -->", "<!-- end of the table -->"
_RECURRENT = "compared over several runs, with its state: `tests/conformance/test_tflite_recurrent.py`"
_NOTES = {
    **dict.fromkeys(("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"),
                    "state: [models.md](models.md#state)"),
    "IF": "compared in `tests/unit/frontend/test_tflite_control.py`",
    "WHILE": "compared in `tests/conformance/test_tflite_loops.py`",
    **dict.fromkeys(("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "RANGE", "UNIQUE", "WHERE"),
                    "the size of the result is in the data"),
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE"),
                    "refused: look the values up outside, and pass indices as an input"),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"),
                    "refused: draw the values outside, and pass them as an input"),
    **dict.fromkeys(("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN",
                     "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "RNN", "SVDF"), _RECURRENT),
    **dict.fromkeys(("CONCAT_EMBEDDINGS", "LSH_PROJECTION", "SKIP_GRAM"), "refused: no conversion"),
    "CUSTOM": "MediaPipe's: `tests/unit/frontend/test_mediapipe.py`; others are operators of your own: "
    "[own-operator.md](own-operator.md)",
    "DELEGATE": "refused: a part of the graph that only a delegate reads",
    "CALL": "its graph takes its place; LiteRT's interpreter has no kernel",
    "STABLEHLO_COMPOSITE": "compared in `tests/unit/frontend/test_tflite_control.py`",
    "STABLEHLO_SCATTER": "compared in `tests/conformance/test_tflite_scatter.py`",
    "STABLEHLO_CASE": "compared in `tests/unit/frontend/test_tflite_control.py`",
    "STABLEHLO_WHILE": "compared in `tests/unit/frontend/test_tflite_control.py`",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "no operator",
    "DENSIFY": "compared in `tests/unit/frontend/test_tflite_sparse.py`",
    "EMBEDDING_LOOKUP_SPARSE": "converted, not compared here",
}  # fmt: skip


def table(results: Sequence[tuple[OperatorCase, Result | None]]) -> str:
    """The table, from the results of all cases."""
    codes = {code: name for name, code in vars(schema.BuiltinOperator).items() if name[0].isupper()}
    rows = [_row(name, results) for _, name in sorted(codes.items())]
    taken = [result for _, result in results if result is not None]
    passed = sum(result.outcome == "pass" for result in taken)
    return "\n".join(
        [
            "| operator | cases that pass | |",
            "| --- | ---: | --- |",
            f"| all | {passed} of {len(taken)} | |",
            *rows,
        ]
    )


def _row(name: str, results: Sequence[tuple[OperatorCase, Result | None]]) -> str:
    of_operator = [result for case, result in results if name in (case.operator, case.then)]
    taken = [result for result in of_operator if result is not None]
    reasons = dict.fromkeys(reason_of(result) for result in taken if result.outcome == REFUSED)
    note = _NOTES.get(name, "") or "; ".join(reasons)
    if of_operator and not taken:
        note = "LiteRT's interpreter has no kernel, or takes other operands"
    share = f"{sum(result.outcome == 'pass' for result in taken)} of {len(taken)}" if taken else ""
    return f"| {name} | {share} | {note or ('' if taken else 'not compared')} |"


def write_table(results: Sequence[tuple[OperatorCase, Result | None]]) -> None:
    """Replace the table of docs/tflite.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(_BEGIN)[0], page.split(_END)[1]
    PAGE.write_text(f"{before}{_BEGIN}\n{table(results)}\n{_END}{after}", encoding="utf-8")


def rows_of(page: str) -> Mapping[str, str]:
    """By operator, the share of cases that pass, in the text of docs/tflite.md."""
    lines = page.split(_BEGIN)[1].split(_END)[0].splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| ")]
    return {cell[1].strip(): cell[2].strip() for cell in cells}
