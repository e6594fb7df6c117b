"""ONNX's own node tests: samples over operators, types and processors in the gate, all as `heavy`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from .onnx_nodes.cases import CONSTANTS, DATA, HALVES, Case, collect, collect_from
from .onnx_nodes.expected import expected, read_expected, read_runs
from .onnx_nodes.results import HOST, PASS, Result, key_of
from .onnx_nodes.table import PAGE, tables, with_tables
from .onnx_nodes.worker import run_all

# By module of onnx.backend.test.case.node, tests of ONNX. Each one stands for an attribute, a type or an
# optional result that has a conversion of its own.
SAMPLE: Mapping[str, tuple[str, ...]] = {
    "acosh": ("test_acosh",),
    "attention": ("test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded",),
    "batch_normalization": ("test_batchnorm_epsilon_training_mode",),
    "bitcast": ("test_bitcast_float32_to_int32",),
    "convtranspose": ("test_convtranspose_output_shape",),
    "deformconv": ("test_deform_conv_with_mask_bias",),
    "det": ("test_det_nd",),
    "affinegrid": ("test_affine_grid_3d_expanded",),
    "dft": ("test_dft_inverse", "test_dft_irfft"),
    "linear_attention": ("test_linear_attention_fp16_expanded",),
    "reshape": ("test_reshape_allowzero_reordered",),
    "split": ("test_split_zero_size_splits_opset18",),
    "gru": ("test_gru_batchwise",),
    "lstm": ("test_lstm_with_peepholes",),
    "maxunpool": ("test_maxunpool_export_with_output_shape",),
    "reduce_log_sum_exp": ("test_reduce_log_sum_exp_keepdims_random",),
    "resize": (
        "test_resize_downsample_scales_cubic_antialias",
        "test_resize_tf_crop_and_resize_extrapolation_value",
        "test_resize_upsample_sizes_nearest_not_larger",
        "test_resize_downsample_scales_linear_align_corners",
    ),
    "stft": ("test_stft_with_window",),
    "swiglu": ("test_swiglu",),
    "tan": ("test_tan",),
    "tensorscatter": ("test_tensorscatter_circular",),
    "trilu": ("test_triu_neg",),
    "bitshift": ("test_bitshift_right_int8_shift_ge_width", "test_bitshift_left_int32_negative_shift"),
    "center_crop_pad": ("test_center_crop_pad_crop_and_pad",),
    "clip": ("test_clip_min_greater_than_max",),
    "col2im": ("test_col2im_5d", "test_col2im_dilations"),
    "cumprod": ("test_cumprod_1d_reverse_exclusive", "test_cumprod_2d_axis_1"),
    "depthtospace": ("test_depthtospace_crd_mode_example",),
    "dropout": ("test_dropout_default_mask_ratio", "test_training_dropout_mask"),
    "eyelike": ("test_eyelike_with_dtype",),
    "isinf": ("test_isinf_negative", "test_isinf_float16"),
    "layernormalization": ("test_layer_normalization_3d_axis_negative_2_epsilon",),
    "lpnormalization": ("test_l2normalization_axis_0",),
    "mod": ("test_mod_float_edge_cases_fmod_0_float32", "test_mod_mixed_sign_float16"),
    "negativeloglikelihoodloss": ("test_nllloss_NCd1d2_reduction_mean_expanded", "test_nllloss_NCd1_ii"),
    "nonzero": ("test_nonzero_example",),
    "pow": ("test_pow_types_int32_int32", "test_pow_types_int32_float32", "test_pow_types_float32_int32"),
    "reduce_log_sum": ("test_reduce_log_sum_asc_axes",),
    "reducemax": ("test_reduce_max_bool_inputs",),
    "reversesequence": ("test_reversesequence_batch",),
    "rmsnormalization": ("test_rms_normalization_2d_axis0",),
    "roialign": ("test_roialign_mode_max", "test_roialign_aligned_true"),
    "spacetodepth": ("test_spacetodepth_crd_mode_example",),
    "squeeze": ("test_squeeze_negative_axes",),
    "swish": ("test_swish",),
}


# Tests whose results depend on the processor: integers of 64 bits, float64 and float16 in software, their
# conversions, NaN, and what is counted or chosen by data.
OF_PROCESSORS: Mapping[str, tuple[str, ...]] = {
    "adagrad": ("test_adagrad",),
    "adam": ("test_adam",),
    "cast": ("test_cast_DOUBLE_to_FLOAT16", "test_cast_FLOAT16_to_DOUBLE", "test_cast_FLOAT_to_BFLOAT16"),
    "celu": ("test_celu_float16",),
    "center_crop_pad": ("test_center_crop_pad_pad",),
    "cumsum": ("test_cumsum_1d_exclusive",),
    "div": ("test_div_uint64",),
    "gathernd": ("test_gathernd_example_int32_batch_dim1",),
    "isinf": ("test_isinf_float16",),
    "layernormalization": ("test_layer_normalization_2d_axis1",),
    "lstm": ("test_lstm_with_peepholes",),
    "matmul": ("test_matmul_3d",),
    "max": ("test_max_float64", "test_max_int64"),
    "mod": ("test_mod_mixed_sign_int64", "test_mod_mixed_sign_float64"),
    "nonmaxsuppression": ("test_nonmaxsuppression_two_batches",),
    "nonzero": ("test_nonzero_example",),
    "pow": ("test_pow_types_int64_float32", "test_pow_types_float32_int64"),
    "qlinearmatmul": ("test_qlinearmatmul_3D_int8_float16",),
    "rangeop": ("test_range_int32_type_negative_delta",),
    "reducemean": ("test_reduce_mean_keepdims_random",),
    "resize": ("test_resize_upsample_scales_cubic",),
    "scatternd": ("test_scatternd_add",),
    "topk": ("test_top_k_uint64",),
    "unique": ("test_unique_sorted_with_axis_3d",),
}
PROCESSORS = ("aarch64", "armv7", "riscv64")


def agree(results: Mapping[str, Result]) -> None:
    """Fail for every case that is neither a pass nor a refusal with the expected reason."""
    known = read_expected()
    wrong = [f"{r.key}: {r.outcome} {r.detail}" for r in results.values() if not expected(r, known)]
    assert not wrong, "\n".join(wrong)


def cases_of(sample: Mapping[str, tuple[str, ...]], variants: Collection[str]) -> list[Case]:
    """Some tests in some variants."""
    cases = collect_from(sample)
    chosen = {name for names in sample.values() for name in names}
    assert {case.name.split("/")[0] for case in cases} == chosen
    return [case for case in cases if case.variant in variants]


def run_sample(cases: Sequence[Case], targets: Sequence[str], without: Collection[str] = ()) -> None:
    """Run cases on targets but for the keys `without`, and compare with what is expected."""
    results = {result.key: result for result in run_all(cases, targets=targets, without=without)}
    assert set(results) == {key_of(case.name, target) for case in cases for target in targets} - set(without)
    assert {result.target for result in results.values() if result.outcome == PASS} == set(targets)
    agree(results)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.heavy) for part in (1, 2))])
def test_a_sample_of_the_node_tests(part: int) -> None:
    """Tests that have both variants take turns: one runs on data, the next with constants."""
    cases = cases_of(SAMPLE, (DATA, CONSTANTS))
    both = [case.name.split("/")[0] for case in cases if case.variant == CONSTANTS]
    left = {f"{name}/{(DATA, CONSTANTS)[number % 2]}" for number, name in enumerate(both)}
    run_sample([case for case in cases if case.name not in left][part::3], [HOST])


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.heavy) for part in (1, 2))])
def test_a_sample_on_other_processors(part: int) -> None:
    """All on the one of 32 bits; those of 64 bits take turns, from test to test."""
    cases = cases_of(OF_PROCESSORS, (DATA, HALVES))[part::3]
    names = list(dict.fromkeys(case.name.split("/")[0] for case in cases))
    idle = {name: ("aarch64", "riscv64")[number % 2] for number, name in enumerate(names)}
    run_sample(cases, PROCESSORS, {key_of(case.name, idle[case.name.split("/")[0]]) for case in cases})


@pytest.mark.heavy
@pytest.mark.parametrize("targets", [(HOST,), PROCESSORS], ids=["here", "emulated"])
def test_all_node_tests(targets: tuple[str, ...]) -> None:
    cases = collect()
    results = {result.key: result for result in run_all(cases, jobs=2, targets=targets)}
    assert set(results) == {key_of(case.name, target) for case in cases for target in targets}
    agree(results)


@pytest.mark.heavy
def test_what_is_expected_is_what_is_documented() -> None:
    cases = collect()
    stale = {name.partition("@")[0] for name in read_expected()} - {case.name for case in cases}
    assert not stale, f"refused.txt names cases that ONNX no longer has: {stale}"
    page = PAGE.read_text(encoding="utf-8")
    written = tables(cases, read_expected(), read_runs())
    assert page == with_tables(page, written), "docs/onnx.md: run with --write"
