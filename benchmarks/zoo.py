"""Architectures of torchvision, timm and transformers, built without weights, and what they are called with."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.own_models import OWN_MODELS, OwnModel
from benchmarks.transformers_models import transformers_models

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GROUPS", "MissingLibraryError", "models_of", "randomise"]

_IMAGES = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t "
    "mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 "
    "resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn "
    "vit_b_32 wide_resnet50_2"
)
_SIZES = {"inception_v3": 96, "maxvit_t": 224, "vit_b_32": 224}
_SEGMENTATION = "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large"
_VIDEO = {"mc3_18": 8, "r2plus1d_18": 8, "r3d_18": 8, "swin3d_t": 4}
"""Model -> how many pictures a film has."""
_TIMM = (
    "beit_base_patch16_224 cait_xxs24_224 coat_lite_tiny coatnet_nano_rw_224 convnext_atto "
    "convnextv2_atto crossvit_tiny_240 cspresnet50 darknet17 davit_tiny deit_tiny_patch16_224 densenet121 "
    "dla34 dpn48b edgenext_xx_small efficientformer_l1 efficientnet_b0 efficientvit_b0 efficientvit_m0 "
    "ese_vovnet19b_dw eva02_tiny_patch14_224 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny ghostnet_050 "
    "gmlp_ti16_224 hiera_tiny_224 hrnet_w18_small inception_next_atto levit_128s mixer_s32_224 mixnet_s "
    "mobilenetv3_small_050 mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 "
    "naflexvit_base_patch16_gap nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0 regnety_002 repvgg_a0 "
    "res2net50_14w_8s resmlp_12_224 resnet18 resnetv2_50 rexnet_100 selecsls42b seresnet50 shvit_s1 "
    "skresnet18 starnet_s1 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 "
    "tiny_vit_5m_224 twins_svt_small vgg11 visformer_tiny vit_tiny_patch16_224 volo_d1_224 "
    "xcit_nano_12_p8_224"
)
_SMALL_IMAGE = 64


class MissingLibraryError(Exception):
    """A library whose models are wanted is not there; the message says how it is installed."""


def randomise(model: nn.Module) -> nn.Module:
    """Give a model random numbers wherever it begins with equal ones, and put it into eval mode.

    A layer that begins with zeros, or a batch norm that has seen nothing, hides what is in front of it.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and parameter.is_floating_point() and parameter.min() == parameter.max():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) / 10)
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model.eval()


def models_of(group: str) -> list[OwnModel]:
    """Return the models of one of `GROUPS`.

    Raises:
        MissingLibraryError: They are of a library that cannot be imported.
    """
    return GROUPS[group]()


def _torchvision_models() -> list[OwnModel]:
    create = _torchvision().models.get_model
    bare: dict[str, Any] = {"weights": None}
    found = [
        OwnModel(
            name,
            partial(create, name, **bare, **_without_slow_start(name)),
            _pictures(_SIZES.get(name, _SMALL_IMAGE)),
        )
        for name in _IMAGES.split()
    ]
    found += [
        OwnModel(name, partial(create, name, **bare, weights_backbone=None), _pictures(_SMALL_IMAGE))
        for name in _SEGMENTATION.split()
    ]
    found += [
        OwnModel(name, partial(create, name, **bare), _films(length)) for name, length in _VIDEO.items()
    ]
    return [*found, OwnModel("raft_small", partial(create, "raft_small", **bare), _two_pictures)]


def _without_slow_start(name: str) -> dict[str, Any]:
    """Return an argument for the models that spend half a minute on initial weights."""
    return {"init_weights": False} if name in {"googlenet", "inception_v3"} else {}


def _timm_models() -> list[OwnModel]:
    _torchvision()
    timm = _imported("timm", "timm pyyaml huggingface_hub safetensors")
    known = set(timm.list_models())
    found: list[OwnModel] = []
    for name in _TIMM.split():
        if name not in known:
            continue
        settings = timm.get_pretrained_cfg(name, allow_unregistered=True)
        size = settings.input_size[-1] if settings.fixed_input_size else _SMALL_IMAGE
        found.append(OwnModel(name, partial(timm.create_model, name, pretrained=False), _pictures(size)))
    return found


def _transformers_models() -> list[OwnModel]:
    _torchvision()
    return transformers_models(
        _imported("transformers", "transformers tokenizers huggingface_hub safetensors regex")
    )


GROUPS: dict[str, Callable[[], list[OwnModel]]] = {
    "own": lambda: list(OWN_MODELS),
    "torchvision": _torchvision_models,
    "timm": _timm_models,
    "transformers": _transformers_models,
}
"""Where models are from -> gives them."""


def _torchvision() -> Any:
    """Return torchvision, also where its compiled operators cannot be loaded, which no model here needs."""
    try:
        return _imported("torchvision", "torchvision pillow")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    # They were built for another torch (for CUDA, for instance); it asks for them while it is imported.
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    return importlib.import_module("torchvision")


def _imported(name: str, packages: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibraryError(
            f"{name} cannot be imported ({error}). Install it with: python -m pip install --no-deps {packages} (and "
            "what these need; --no-deps keeps the torch that is there)."
        ) from error


def _pictures(size: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda batch: (torch.randn(batch, 3, size, size),)


def _films(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda batch: (torch.randn(batch, 3, length, _SMALL_IMAGE, _SMALL_IMAGE),)


def _two_pictures(batch: int) -> tuple[Tensor, Tensor]:
    first = torch.randn(batch, 3, 128, 128)
    return first, first.roll(2, dims=-1)
