"""Domains of ONNX operators that several modules name."""

from __future__ import annotations

NARROW = "kiln.narrow"  # Kiln's own operators that encode and decode (kiln.frontend.onnx.narrow_codes)
TRAINING = "ai.onnx.preview.training"  # optimisers (kiln.frontend.onnx.training_ops)
