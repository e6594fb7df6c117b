"""Encoders of text of the library transformers: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Entry, Made, add

_WIDTH = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
_BART = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}

# by name: class of the model, its configuration
_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "big_bird": ("BigBirdModel", {**_WIDTH, "attention_type": "original_full"}),
    "layoutlm": ("LayoutLMModel", _WIDTH),
    "camembert": ("CamembertForMaskedLM", _WIDTH),
    "canine": ("CanineModel", {**_WIDTH, "num_hash_buckets": 50, "local_transformer_stride": 8}),
    "convbert": ("ConvBertModel", {**_WIDTH, "embedding_size": 32, "head_ratio": 2, "conv_kernel_size": 5}),
    "data2vec_text": ("Data2VecTextModel", _WIDTH),
    "deberta_v1": ("DebertaModel", {**_WIDTH, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "ernie": ("ErnieModel", _WIDTH),
    "esm": ("EsmModel", {**_WIDTH, "position_embedding_type": "rotary", "mask_token_id": 3}),
    "flaubert": (
        "FlaubertModel",
        {"n_words": 100, "vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    ),
    "fnet": ("FNetModel", {**_WIDTH, "use_tpu_fourier_optimizations": False}),
    "funnel": (
        "FunnelModel",
        {"vocab_size": 100, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1]},
    ),
    "ibert": ("IBertModel", _WIDTH),
    "longformer": ("LongformerModel", {**_WIDTH, "attention_window": [8, 8]}),
    "megatron_bert": ("MegatronBertModel", _WIDTH),
    "mobilebert": (
        "MobileBertModel",
        {**_WIDTH, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    ),
    "mra": ("MraModel", _WIDTH),
    "nystromformer": (
        "NystromformerModel",
        {**_WIDTH, "num_landmarks": 24, "segment_means_seq_len": 24},
    ),
    "rembert": ("RemBertModel", {**_WIDTH, "input_embedding_size": 16, "output_embedding_size": 16}),
    "roformer": ("RoFormerModel", {**_WIDTH, "embedding_size": 32}),
    "squeezebert": ("SqueezeBertModel", {**_WIDTH, "embedding_size": 32}),
    "tapas": ("TapasModel", {**_WIDTH, "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]}),
    "xlm": ("XLMModel", {"n_words": 100, "vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "xlnet": ("XLNetModel", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "yoso": ("YosoModel", {**_WIDTH, "use_expectation": True}),
    "switch_transformer": (
        "SwitchTransformersEncoderModel",
        {**T5, "num_experts": 3, "num_sparse_encoder_layers": 1},
    ),
    "longt5": ("LongT5EncoderModel", {**T5, "local_radius": 4}),
}

# encoders with decoders: all tokens of the decoder at once
_PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartModel", _BART),
    "blenderbot": ("BlenderbotModel", _BART),
    "led": ("LEDModel", {**_BART, "attention_window": 8, "max_encoder_position_embeddings": 80}),
    "m2m100": ("M2M100Model", _BART),
    "marian": ("MarianModel", _BART),
    "mbart": ("MBartModel", _BART),
    "pegasus": ("PegasusModel", _BART),
    "prophetnet": (
        "ProphetNetModel",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 80,
        },
    ),
}


class First(nn.Module):
    """The first of a network's results, of one or two inputs given by name."""

    def __init__(self, net: Any, *names: str, **more: Any) -> None:
        super().__init__()
        self.net, self.names, self.more = net, names, more

    def forward(self, first: Any, second: Any = None) -> Any:
        inputs = dict(zip(self.names, (first, second), strict=False))
        return self.net(**inputs, **self.more, return_dict=False)[0]


def made(name: str, config: dict[str, Any]) -> Any:
    """The network `name` of transformers."""
    cls = getattr(hf, name)
    settings = cls.config_class(**config)
    settings._attn_implementation = "eager" if name.startswith(("Deberta", "Longformer")) else None
    return cls(settings)


def _encoder(name: str, length: int = 24) -> Made:
    net = First(made(*_ENCODERS[name]), "input_ids", "attention_mask")
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, -2:] = 0
    return net, {"ids": torch.randint(5, 99, (1, length)), "mask": mask}


def _pair(name: str) -> Made:
    net = First(made(*_PAIRS[name]), "input_ids", "decoder_input_ids", use_cache=False)
    return net, {"ids": torch.randint(5, 99, (1, 16)), "decoded": torch.randint(5, 99, (1, 8))}


_TEXT = {"ids": {1: "seq"}, "mask": {1: "seq"}}
for _name in _ENCODERS:
    add(Entry(_name, "text", lambda n=_name: _encoder(n), _TEXT, {"seq": (2, 64)}))  # type: ignore[misc]
for _name in _PAIRS:
    add(Entry(_name, "translation", lambda n=_name: _pair(n), {"ids": {1: "seq"}}, {"seq": (2, 64)}))  # type: ignore[misc]
