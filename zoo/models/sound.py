"""Networks of sound and of series of the library transformers: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch

from zoo.catalogue import Entry, Made, add
from zoo.models.encoders import First, made

_WAVE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16,) * 7,
    "num_feat_extract_layers": 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}

_WAVES: dict[str, tuple[str, dict[str, Any]]] = {
    "data2vec_audio": ("Data2VecAudioModel", {**_WAVE, "conv_pos_kernel_size": 5}),
    "hubert": ("HubertModel", {**_WAVE, "feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    "sew": (
        "SEWModel",
        {
            **_WAVE,
            "squeeze_factor": 2,
            "conv_stride": (5, 2, 2, 2, 2, 2, 2),
            "conv_kernel": (10, 3, 3, 3, 3, 2, 2),
        },
    ),
    "unispeech_sat": ("UniSpeechSatModel", _WAVE),
    "wav2vec2_conformer": ("Wav2Vec2ConformerModel", {**_WAVE, "position_embeddings_type": "rotary"}),
    "wavlm": ("WavLMModel", {**_WAVE, "num_buckets": 16, "max_bucket_distance": 40}),
}
_CODECS: dict[str, tuple[str, dict[str, Any]]] = {
    "dac": (
        "DacModel",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "decoder_hidden_size": 16,
            "n_codebooks": 2,
            "codebook_size": 16,
            "codebook_dim": 4,
            "upsampling_ratios": [4, 2],
        },
    ),
    "encodec": (
        "EncodecModel",
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_size": 16,
            "upsampling_ratios": [4, 2],
            "codebook_dim": 16,
            "use_causal_conv": False,
        },
    ),
    "hifigan": (
        "SpeechT5HifiGan",
        {
            "model_in_dim": 16,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 2],
            "upsample_kernel_sizes": [8, 4],
        },
    ),
}
_FEATURES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str, int]] = {
    "ast": (
        "ASTModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "num_mel_bins": 32,
            "max_length": 64,
            "frequency_stride": 8,
            "time_stride": 8,
        },
        (1, 64, 32),
        "input_values",
        0,
    ),
    "wav2vec2_bert": (
        "Wav2Vec2BertModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "feature_projection_input_dim": 40,
        },
        (1, 60, 40),
        "input_features",
        1,
    ),
    "parakeet": (
        "ParakeetEncoder",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "num_mel_bins": 32,
            "subsampling_conv_channels": 16,
        },
        (1, 64, 32),
        "input_features",
        1,
    ),
    "patchtsmixer_hf": (
        "PatchTSMixerForPrediction",
        {
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "num_input_channels": 3,
            "d_model": 16,
            "prediction_length": 8,
        },
        (1, 32, 3),
        "past_values",
        0,
    ),
}


def _wave(name: str) -> Made:
    return First(made(*_WAVES[name]), "input_values"), {"wave": torch.randn(1, 4000)}


for _name in _WAVES:
    add(Entry(_name, "speech", lambda n=_name: _wave(n), {"wave": {1: "samples"}}, {"samples": (800, 8000)}))  # type: ignore[misc]


def _features(name: str) -> Made:
    cls, config, shape, key, _ = _FEATURES[name]
    return First(made(cls, config), key), {"features": torch.randn(*shape)}


for _name, _row in _FEATURES.items():
    add(
        Entry(
            _name,
            "speech",
            lambda n=_name: _features(n),  # type: ignore[misc]
            {"features": {_row[4]: "size"}},
            {"size": (1, 3) if _row[4] == 0 else (16, 80)},
        )
    )


class Mel2Wave(torch.nn.Module):
    """HiFi-GAN of SpeechT5: a spectrogram to a wave."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, mel: Any) -> Any:
        return self.net(mel)


class Coder(torch.nn.Module):
    """A neural codec without its code books: the encoder, and the decoder of its result."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = net.encoder, net.decoder

    def forward(self, wave: Any) -> Any:
        hidden = self.encoder(wave)
        return hidden, self.decoder(hidden)


def _coder(name: str) -> Made:
    if name == "hifigan":
        return Mel2Wave(made(*_CODECS[name])), {"mel": torch.randn(20, 16)}
    return Coder(made(*_CODECS[name])), {"wave": torch.randn(1, 1, 800)}


for _name in _CODECS:
    _axes = {"mel": {0: "frames"}} if "hifigan" in _name else {"wave": {2: "8*frames"}}
    add(Entry(_name, "speech", lambda n=_name: _coder(n), _axes, {"frames": (16, 128)}))  # type: ignore[misc]
