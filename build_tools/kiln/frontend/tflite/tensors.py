"""Reads the tensors of operators, in places where TVM 0.27 takes no account of constants or of types."""

from __future__ import annotations

from typing import Any

import numpy as np
import tflite
from tvm import ir
from tvm.relax.frontend.tflite import tflite_frontend


class TensorConverter(tflite_frontend.OperatorConverter):  # type: ignore[misc]  # tvm is untyped
    """Types, expressions and values of tensors, as all converters of operators read them."""

    def get_tensor_type_str(self, tensor_type: int) -> str:
        """The name of an element type. Raises ValueError for one that no operator computes."""
        try:
            return str(super().get_tensor_type_str(tensor_type))
        except NotImplementedError as error:
            names = {code: name.lower() for name, code in vars(tflite.TensorType).items() if name.isupper()}
            raise ValueError(
                f"a tensor of type {names.get(tensor_type, tensor_type)}: not supported"
            ) from error

    def get_tensors(self, positions: Any) -> Any:
        """The tensors at `positions` of the file. One scale is of the whole tensor, whatever axis it names.

        TVM 0.27 refuses a depthwise convolution of one channel whose only scale names the channels' axis.
        """
        tensors = super().get_tensors(positions)
        for tensor in tensors:
            if tensor.qnn_params and np.ndim(tensor.qnn_params["scale"].value.numpy()) == 0:
                tensor.qnn_params["axis"] = 0
        return tensors

    def get_expr(self, index: int) -> Any:
        """Tensor `index` as an expression; TVM 0.27's converters call it for constants of the file, too."""
        if index < 0 or self.has_expr(index):
            return super().get_expr(index)
        return self.get_tensor_expr(self.get_tensors([index])[0])

    def get_tensor_value(self, tensor: Any, is_sparse: bool = False) -> Any:
        """The elements of a constant of the file, or of one that an operator was converted to.

        Raises ValueError for a tensor that the run computes, which TVM 0.27 takes for an empty constant.
        """
        if not self.has_expr(tensor.tensor_idx):
            return super().get_tensor_value(tensor, is_sparse)
        expr = self.get_expr(tensor.tensor_idx)
        if isinstance(expr, ir.GenericConst):
            return expr.value.numpy()
        name = tflite_frontend.get_tensor_name(self.subgraph, tensor.tensor_idx)
        raise ValueError(f"its input '{name}' is not known before the model runs")
