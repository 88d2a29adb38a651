"""``import fxplug as fx``: what the facade lists is there."""

from __future__ import annotations

import pytest

import fxplug


@pytest.mark.parametrize("name", fxplug.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fxplug, name) is not None


def test_the_list_is_sorted_and_has_no_name_twice():
    # Constants first, as the linter sorts them.
    assert sorted(set(fxplug.__all__), key=lambda name: (not name.isupper(), name)) == fxplug.__all__


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'fxplug' has no attribute 'nothing'"):
        _ = fxplug.nothing
