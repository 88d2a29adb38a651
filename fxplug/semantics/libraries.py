"""What functions of other libraries do that these keep as calls when a program is captured (``torch.fx.wrap``)."""

from __future__ import annotations

import sys
from typing import Any, Literal

__all__ = ["Doing", "what_does"]

Doing = Literal["computes", "draws in training", "drops in training", "fills lists"]

_WINDOWS = {"_get_relative_position_bias": "computes"}
_KNOWN: dict[str, dict[str, Any]] = {
    "torchvision.ops.stochastic_depth": {"stochastic_depth": "drops in training"},
    "torchvision.models.swin_transformer": {
        **_WINDOWS,
        "_patch_merging_pad": "computes",
        "shifted_window_attention": "draws in training",
    },
    "torchvision.models.video.swin_transformer": {
        **_WINDOWS,
        "_compute_pad_size_3d": "computes",
        "_get_window_and_shift_size": "fills lists",
        "_compute_attention_mask_3d": "computes",
        "shifted_window_attention_3d": "draws in training",
    },
}
"""Module -> function -> what it does besides returning a value: nothing, or it draws where its `training` is true (one
that drops returns its first argument elsewhere); or it returns lists that it was given, with other numbers in them."""


def what_does(function: Any) -> Doing | None:
    """Return what a function of another library does, None for those that nothing is known of."""
    module = getattr(function, "__module__", None)
    names = _KNOWN.get(module) if isinstance(module, str) else None
    if names is None:
        return None
    name = getattr(function, "__name__", "")
    # The very function must be found there: a name can be claimed by anybody.
    return names.get(name) if getattr(sys.modules.get(str(module)), name, None) is function else None
