"""Builtin operators of TFLite against LiteRT: a sample in the gate, all cases as `heavy`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .onnx_nodes.results import PASS
from .tflite_operators.all_cases import cases
from .tflite_operators.files import OperatorCase
from .tflite_operators.table import PAGE, rows_of, table
from .tflite_operators.without_floats import compared, list_in_docs, listed
from .tflite_operators.worker import results

# One case for each converter of Kiln's own; what differs between types is in the heavy test.
_NAMES = """
    ARG_MAX/int8 ATAN2/float32 BATCH_MATMUL/int8_adj BATCH_TO_SPACE_ND/int8 BITCAST/int32_int16
    BITCAST/float32_int32 BUCKETIZE/float32 CAST/float32_int32 CONV_2D/hybrid CONV_2D/int16_same_1
    CONV_3D_TRANSPOSE/float32 CUMSUM/int32_exclusive DEPTHWISE_CONV_2D/hybrid DYNAMIC_UPDATE_SLICE/int8_beyond
    DYNAMIC_UPDATE_SLICE/int8_rows
    EMBEDDING_LOOKUP/hybrid EQUAL/bool EXPAND_DIMS/int16_last FILL/int8 FLOOR_MOD/int8
    FULLY_CONNECTED/hybrid_int8
    FULLY_CONNECTED/int16 GELU/int8 L2_NORMALIZATION/int8 LOCAL_RESPONSE_NORMALIZATION/float32
    MATRIX_DIAG/int32
    MATRIX_SET_DIAG/float32 MEAN/int32 MIRROR_PAD/float32_1 POW/int32 PRELU/uint8 REDUCE_WINDOW/int32_1
    REVERSE_SEQUENCE/int16 RFFT2D/COMPLEX_ABS_4x8 SCATTER_ND/bool SELECT_V2/int8 SPACE_TO_BATCH_ND/int8
    SPARSE_TO_DENSE/float32 SQUARED_DIFFERENCE/int32 STABLEHLO_ADD/bool TRANSPOSE_CONV/int8_same
    TRANSPOSE_CONV/float32_valid UNSORTED_SEGMENT_MAX/int32
    SUM/float32_noneFalse REDUCE_MAX/int8_lastFalse SQUEEZE/float32_0_0 GATHER/float32_batch12
    TOPK_V2/int8_vector STRIDED_SLICE/float32_offset BATCH_MATMUL/float32_43_held DEQUANTIZE/channels
    FULLY_CONNECTED/int8_2_False EMBEDDING_LOOKUP/channels EMBEDDING_LOOKUP/int8 ELU/special SIGN/special
    CONV_2D/int4_int8_5 QUANTIZE/int16_int32_1.5 REVERSE_V2/int8_two PRELU/no_axes ELU/int8
    BATCH_MATMUL/float32_batches RESIZE_BILINEAR/int8_1x1_True_False RESIZE_BILINEAR/int16_half
    EQUAL/int16_alike LESS/int8_near
    RESIZE_NEAREST_NEIGHBOR/bool_1x3_True_False
"""
SAMPLE = frozenset(_NAMES.split())


def agree(chosen: Sequence[OperatorCase], jobs: int = 1) -> str:
    """The table of the cases; fails for a result other than LiteRT's, and for a crash."""
    pairs = list(results(chosen, jobs))
    order = {case.name: number for number, case in enumerate(chosen)}
    pairs.sort(key=lambda pair: order[pair[0].name])
    wrong = [f"{c.name}: {r.outcome} {r.detail}" for c, r in pairs if r and r.outcome in ("wrong", "crash")]
    assert not wrong, "\n".join(wrong)
    return table(pairs)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_sample_of_the_operators(half: int) -> None:
    chosen = [case for case in cases() if case.name in SAMPLE]
    assert {case.name for case in chosen} == SAMPLE
    pairs = list(results(chosen[half::2]))
    assert [c.name for c, r in pairs if r is None] == []  # LiteRT takes all of them
    bad = [f"{c.name}: {r.outcome} {r.detail}" for c, r in pairs if r is not None and r.outcome != PASS]
    assert not bad, "\n".join(bad)


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))


@pytest.mark.heavy
def test_all_cases() -> None:
    rows = agree(cases(), jobs=2)
    assert rows in PAGE.read_text(encoding="utf-8"), "docs/tflite.md: run with --write"
    assert rows_of(PAGE.read_text(encoding="utf-8"))["all"]


_INTEGERS = """
    ADD/int16 BATCH_MATMUL/int16_43 CONV_2D/int16_1_3_11 CONV_2D/int16_narrow_8 CONV_2D/int16_wide_1100
    DEPTHWISE_CONV_2D/int16_1_3_11_3 FULLY_CONNECTED/int16_channels_wide_8 TRANSPOSE_CONV/int16_1_3_bias
    FULLY_CONNECTED/int16_tensor_wide_1100 FULLY_CONNECTED/int16_openbias ELU/int8 EQUAL/int8 LEAKY_RELU/int8
    LOG/int8 MAXIMUM/uint8 MUL/int16 NEG/int16 AVERAGE_POOL_2D/int16_0_3_3 AVERAGE_POOL_2D/int16_1_9_1
    RESIZE_BILINEAR/int8_half RESIZE_NEAREST_NEIGHBOR/int16_half
    QUANTIZE/int16_int8 REDUCE_MAX/int8keep SUM/int8 SUM/uint8keep
    TRANSPOSE_CONV/int8_1_3_bias TRANSPOSE_CONV/uint8_same
    DIV/int16_act3 DIV/int8_both L2_NORMALIZATION/int8 L2_NORMALIZATION/uint8 LEAKY_RELU/int16_-0.5
    LOG_SOFTMAX/int8 LOG_SOFTMAX/uint8_5 BATCH_MATMUL/int8_43 BATCH_MATMUL/int8_batches
    MEAN/int16keep PRELU/int8 PRELU/uint8_full SUB/int16broadcast SQRT/int16
"""


@pytest.mark.heavy
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_cores_without_an_fpu_compute_integers(half: int) -> None:
    chosen = [case for case in cases() if case.name in _INTEGERS.split()]
    differ, floats = compared(chosen[half::2])
    assert (differ, floats) == ([], {})


@pytest.mark.heavy
def test_all_cases_without_an_fpu() -> None:
    differ, floats = compared(cases())
    assert differ == []
    assert listed(floats) == list_in_docs(), "docs/microcontrollers.md: run with --write"
