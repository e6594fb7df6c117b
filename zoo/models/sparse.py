"""Networks of the library transformers that attend to few places: blocks, points, the words of a phrase."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from zoo.models.named import BOXES, DETR_LAYERS, SWIN, TEXT, Kind, add_all, words

_BLOCKS = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}


def _described() -> dict[str, tuple[str, Any]]:
    """An image, and the words to be found in it, which id 6 ends each."""
    return {
        "image": ("pixel_values", torch.randn(1, 3, 128, 128)),
        "ids": ("input_ids", torch.tensor([[5, 20, 21, 6, 30, 6]])),
        "mask": ("attention_mask", torch.ones(1, 6, dtype=torch.int64)),
    }


_KINDS: dict[str, Kind] = {
    "grounding_dino": Kind(
        "GroundingDinoForObjectDetection",
        lambda: {
            "backbone_config": hf.SwinConfig(**SWIN, out_features=["stage2", "stage3", "stage4"]),
            "text_config": hf.BertConfig(**TEXT),
            "d_model": 32,
            **DETR_LAYERS,
            "num_queries": 12,
            "num_feature_levels": 4,
            "max_text_len": 16,
        },
        _described,
        BOXES,
        scores=True,
    ),
    "oneformer": Kind(
        "OneFormerForUniversalSegmentation",
        lambda: {
            "backbone_config": hf.SwinConfig(**SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
            "num_queries": 8,
            "hidden_dim": 32,
            "conv_dim": 32,
            "mask_dim": 32,
            "encoder_feedforward_dim": 64,
            "dim_feedforward": 64,
            "encoder_layers": 1,
            "decoder_layers": 3,
            "num_attention_heads": 4,
            "task_seq_len": 7,
            "text_encoder_width": 16,
            "text_encoder_num_layers": 1,
            "use_auxiliary_loss": False,
            "output_auxiliary_logits": False,
            "num_labels": 5,
        },
        lambda: {
            "image": ("pixel_values", torch.randn(1, 3, 64, 64)),
            "task": ("task_inputs", torch.randint(1, 99, (1, 7)).float()),
        },
        ("class_queries_logits", "masks_queries_logits"),
    ),
    "big_bird_blocks": Kind(
        "BigBirdModel",
        lambda: {**TEXT, "max_position_embeddings": 128, **_BLOCKS},
        lambda: words(64),
        ("last_hidden_state",),
    ),
}
add_all("sparse", _KINDS)
