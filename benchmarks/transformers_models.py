"""Small models of the library transformers, with random weights: language models, encoders, vision, speech."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.own_models import OwnModel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["transformers_models"]

_WORDS = 100
_LENGTH = 7
_WIDTH: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT: dict[str, Any] = {**_WIDTH, "vocab_size": _WORDS}
_DECODER: dict[str, Any] = {**_TEXT, "use_cache": False}
_VISION: dict[str, Any] = {**_WIDTH, "image_size": 32, "patch_size": 8}
_BOTH: dict[str, Any] = {
    "vocab_size": _WORDS,
    "d_model": 32,
    "use_cache": False,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_ENCODERS = {
    "BertModel": _TEXT,
    "BertForSequenceClassification": _TEXT,
    "RobertaModel": _TEXT,
    "AlbertModel": {**_TEXT, "embedding_size": 16},
    "ElectraModel": {**_TEXT, "embedding_size": 16},
    "DistilBertModel": {"vocab_size": _WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "DebertaV2Model": _TEXT,
}
_DECODERS = {
    "GPT2LMHeadModel": {"vocab_size": _WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
    "GPTNeoXForCausalLM": _DECODER,
    "LlamaForCausalLM": _DECODER,
    "MistralForCausalLM": {**_DECODER, "num_key_value_heads": 2},
    "Qwen2ForCausalLM": {**_DECODER, "num_key_value_heads": 2},
    "GemmaForCausalLM": {**_DECODER, "num_key_value_heads": 2, "head_dim": 8},
    "MixtralForCausalLM": {**_DECODER, "num_key_value_heads": 2, "num_local_experts": 4},
    "PhiForCausalLM": _DECODER,
    "OPTForCausalLM": {
        "vocab_size": _WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "use_cache": False,
    },
    "BloomForCausalLM": {
        "vocab_size": _WORDS,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "use_cache": False,
    },
    "MambaForCausalLM": {
        "vocab_size": _WORDS,
        "hidden_size": 32,
        "state_size": 4,
        "num_hidden_layers": 2,
        "use_cache": False,
    },
}
_WITHOUT_MASK = frozenset({"GPT2LMHeadModel", "BloomForCausalLM", "MambaForCausalLM"})
"""Models whose second input is no mask."""
_PICTURES = {
    "ViTModel": (32, _VISION),
    "DeiTModel": (32, _VISION),
    "Dinov2Model": (32, {**_WIDTH, "image_size": 32, "patch_size": 8}),
    "SwinModel": (
        64,
        {
            "image_size": 64,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    "ConvNextModel": (64, {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
    "ResNetForImageClassification": (64, {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "SegformerForSemanticSegmentation": (
        64,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
    ),
}


class ByName(nn.Module):
    """Calls a model whose inputs have to be named."""

    def __init__(self, model: nn.Module, names: tuple[str, str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, first: Tensor, second: Tensor) -> Any:
        """Return what the model returns."""
        return self.model(**dict(zip(self.names, (first, second), strict=True)))


def transformers_models(library: Any) -> list[OwnModel]:
    """Return the models.

    Args:
        library: The module ``transformers``.
    """
    found = [
        OwnModel(name, partial(_build, library, name, settings), _words if name in _WITHOUT_MASK else _padded)
        for name, settings in {**_ENCODERS, **_DECODERS}.items()
    ]
    found += [
        OwnModel(name, partial(_build, library, name, settings), partial(_pictures, size))
        for name, (size, settings) in _PICTURES.items()
    ]
    return found + _models_of_two_inputs(library)


def _build(library: Any, name: str, settings: dict[str, Any]) -> nn.Module:
    kind = getattr(library, name)
    return kind(kind.config_class(**settings))


def _models_of_two_inputs(library: Any) -> list[OwnModel]:
    t5 = {
        "vocab_size": _WORDS,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "use_cache": False,
    }
    whisper = {
        **_BOTH,
        "max_source_positions": 20,
        "num_mel_bins": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    clip = {
        "text_config": {**_WIDTH, "vocab_size": _WORDS, "max_position_embeddings": 20},
        "vision_config": _VISION,
        "projection_dim": 16,
    }
    texts = ("input_ids", "decoder_input_ids")
    cases: list[tuple[str, dict[str, Any], tuple[str, str], Callable[[int], tuple[Tensor, ...]]]] = [
        ("T5ForConditionalGeneration", t5, texts, lambda batch: (*_words(batch), *_words(batch))),
        ("BartForConditionalGeneration", _BOTH, texts, lambda batch: (*_words(batch), *_words(batch))),
        (
            "WhisperModel",
            whisper,
            ("input_features", texts[1]),
            lambda batch: (torch.randn(batch, 8, 40), *_words(batch)),
        ),
        (
            "CLIPModel",
            clip,
            ("input_ids", "pixel_values"),
            lambda batch: (*_words(batch), *_pictures(32, batch)),
        ),
    ]
    return [
        OwnModel(name, partial(_by_name, library, name, settings, names), inputs)
        for name, settings, names, inputs in cases
    ]


def _by_name(library: Any, name: str, settings: dict[str, Any], names: tuple[str, str]) -> nn.Module:
    return ByName(_build(library, name, settings), names)


def _words(batch: int) -> tuple[Tensor, ...]:
    return (torch.randint(3, _WORDS, (batch, _LENGTH)),)


def _padded(batch: int) -> tuple[Tensor, ...]:
    """Return texts, and a mask that hides the end of the first one."""
    mask = torch.ones(batch, _LENGTH, dtype=torch.long)
    mask[0, -2:] = 0
    return (*_words(batch), mask)


def _pictures(size: int, batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
