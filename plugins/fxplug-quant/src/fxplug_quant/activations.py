"""What layers do to a float32 output of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["POST_OPERATIONS"]

POST_OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda values: values,
    "relu": torch.relu_,
    "selu": torch.selu_,
    "gelu": functional.gelu,
    "gelu-tanh": lambda values: functional.gelu(values, approximate="tanh"),
    "sigmoid": torch.sigmoid_,
    "silu": lambda values: functional.silu(values, inplace=True),
    "tanh": torch.tanh_,
}
"""Name -> what a layer does to a float32 output of its own, in place where torch can. On steps there is only ReLU."""
