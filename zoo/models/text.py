"""Encoders of text, and of text and images; taggers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Made, entry

TEXT = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}
SIZES = {"batch": (1, 4), "seq": (2, 64)}
SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


class Encoder(nn.Module):
    """A network of ids and a mask, and the fields of its result that count."""

    def __init__(self, net: Any, *fields: str) -> None:
        super().__init__()
        self.net, self.fields = net, fields

    def forward(self, ids: Any, mask: Any) -> Any:
        out = self.net(input_ids=ids, attention_mask=mask)
        return tuple(out[field] for field in self.fields)


def _made(net: Any, *fields: str, length: int = 24, batch: int = 2) -> Made:
    inputs = {
        "ids": torch.randint(0, 100, (batch, length)),
        "mask": torch.ones(batch, length, dtype=torch.int64),
    }
    return Encoder(net, *fields), inputs


@entry("text", TEXT, SIZES)
def bert() -> Made:
    return _made(hf.BertModel(hf.BertConfig(**SMALL)), "last_hidden_state", "pooler_output")


@entry("text", TEXT, SIZES)
def distilbert() -> Made:
    config = hf.DistilBertConfig(vocab_size=100, dim=64, n_layers=2, n_heads=4, hidden_dim=128)
    return _made(hf.DistilBertForSequenceClassification(config), "logits")


@entry("text", TEXT, SIZES)
def albert() -> Made:
    config = hf.AlbertConfig(embedding_size=32, **SMALL)
    return _made(hf.AlbertModel(config), "last_hidden_state", "pooler_output")


@entry("text", TEXT, SIZES)
def roberta() -> Made:
    config = hf.RobertaConfig(max_position_embeddings=80, **SMALL)
    return _made(hf.RobertaForTokenClassification(config), "logits")


@entry("text", TEXT, SIZES)
def deberta() -> Made:
    config = hf.DebertaV2Config(
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=16,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        max_position_embeddings=64,
        **SMALL,
    )
    return _made(hf.DebertaV2Model(config), "last_hidden_state")


@entry("text", TEXT, SIZES)
def electra() -> Made:
    return _made(hf.ElectraForPreTraining(hf.ElectraConfig(embedding_size=32, **SMALL)), "logits")


@entry("text", TEXT, SIZES)
def mpnet() -> Made:
    return _made(hf.MPNetModel(hf.MPNetConfig(**SMALL)), "last_hidden_state")


@entry("text", TEXT, SIZES)
def modernbert() -> Made:
    config = hf.ModernBertConfig(
        global_attn_every_n_layers=2,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="sdpa",
        **SMALL,
    )
    return _made(hf.ModernBertModel(config), "last_hidden_state")


def t5_config() -> Any:
    """A small T5, with gated feed-forward layers and few buckets of relative positions."""
    return hf.T5Config(
        vocab_size=100,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )


@entry("text", {"ids": {1: "seq"}, "mask": {1: "seq"}}, {"seq": (2, 64)})
def t5_encoder() -> Made:
    return _made(hf.T5EncoderModel(t5_config()), "last_hidden_state", batch=1)


def _clip() -> Any:
    text = {"max_position_embeddings": 32, "eos_token_id": 99, **SMALL}
    vision = {"image_size": 64, "patch_size": 16, **{k: v for k, v in SMALL.items() if k != "vocab_size"}}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))


class Tower(nn.Module):
    """A tower of CLIP: its vector has length 1."""

    def __init__(self, model: Any, projection: Any, *names: str) -> None:
        super().__init__()
        self.model, self.projection, self.names = model, projection, names

    def forward(self, *inputs: Any) -> Any:
        x = self.projection(self.model(**dict(zip(self.names, inputs, strict=True))).pooler_output)
        return x / x.norm(dim=-1, keepdim=True)


@entry("text and image", {"ids": {0: "batch"}}, {"batch": (1, 4)})
def clip_text() -> Made:
    net = _clip()
    tower = Tower(net.text_model, net.text_projection, "input_ids")
    return tower, {"ids": torch.randint(0, 100, (2, 32))}


@entry("text and image", {"image": {0: "batch"}}, {"batch": (1, 4)})
def clip_image() -> Made:
    net = _clip()
    tower = Tower(net.vision_model, net.visual_projection, "pixel_values")
    return tower, {"image": torch.randn(2, 3, 64, 64)}


class Tagger(nn.Module):
    """A bidirectional recurrent network over embeddings, with a class per token."""

    def __init__(self, rnn: Any) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(100, 24), rnn, nn.Linear(64, 7)

    def forward(self, ids: Any) -> Any:
        return self.head(self.rnn(self.embed(ids))[0])


@entry("text", {"ids": {1: "seq"}}, {"seq": (2, 64)})
def lstm_tagger() -> Made:
    rnn = nn.LSTM(24, 32, 2, batch_first=True, bidirectional=True)
    return Tagger(rnn), {"ids": torch.randint(0, 100, (1, 20))}


@entry("text", {"ids": {1: "seq"}}, {"seq": (2, 64)})
def gru_tagger() -> Made:
    return Tagger(nn.GRU(24, 32, batch_first=True, bidirectional=True)), {
        "ids": torch.randint(0, 100, (1, 20))
    }
