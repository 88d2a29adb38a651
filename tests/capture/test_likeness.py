"""Which modules lead to the same code, as far as a program can tell."""

from __future__ import annotations

import pytest
from torch import nn

from fxplug.capture.likeness import Likenesses


class Empty:
    """Something that is called and counts as false."""

    def __call__(self, x):
        return x

    def __len__(self):
        return 0


def with_forward(layer):
    layer.forward = Empty()


def with_hook(layer):
    layer.register_forward_hook(lambda *_: None)


def with_pre_hook(layer):
    layer.register_forward_pre_hook(lambda *_: None)


def with_part(layer):
    layer.part = nn.ReLU()


@pytest.mark.parametrize("change", [with_forward, with_hook, with_pre_hook, with_part])
def test_a_layer_of_torch_with_code_of_its_own_is_like_no_other(change):
    plain, other = nn.Linear(2, 2), nn.Linear(3, 3)
    changed = nn.Linear(2, 2)
    change(changed)
    alike = Likenesses()

    assert alike.of(plain) == alike.of(other) != alike.of(changed)
    assert (
        alike.of(nn.Sequential(plain)) == alike.of(nn.Sequential(other)) != alike.of(nn.Sequential(changed))
    )
    assert alike.of(nn.ReLU()) != alike.of(nn.GELU())
