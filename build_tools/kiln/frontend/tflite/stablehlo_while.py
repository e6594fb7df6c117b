"""Replaces StableHLO's loops, which LiteRT has no kernels of, by WHILE."""

from __future__ import annotations

from typing import Any

from kiln.frontend.tflite.files import Kinds


def replace_stablehlo_while(schema: Any, model: Any, kinds: Kinds) -> None:
    """Make a WHILE of each STABLEHLO_WHILE of `model`."""
    for op in [op for graph in model.subgraphs for op in graph.operators or []]:
        if kinds.of(op) == "STABLEHLO_WHILE":
            options, options_2 = schema.WhileOptionsT(), op.builtinOptions2
            options.condSubgraphIndex, options.bodySubgraphIndex = (
                options_2.condSubgraphIndex, options_2.bodySubgraphIndex,
            )  # fmt: skip
            op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.WhileOptions, options
            op.builtinOptions2Type, op.builtinOptions2 = 0, None
            op.opcodeIndex = kinds.code(schema.BuiltinOperator.WHILE)
    used = {op.opcodeIndex for graph in model.subgraphs for op in graph.operators or []}
    for number, code in enumerate(model.operatorCodes):
        if number not in used and code.builtinCode == schema.BuiltinOperator.STABLEHLO_WHILE:
            # LiteRT refuses a file that lists an unknown operator, even if no graph uses it.
            code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
