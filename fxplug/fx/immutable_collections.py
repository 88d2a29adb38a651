"""The containers that stand in the arguments of nodes."""

from __future__ import annotations

from fxplug.ir import immutable_dict, immutable_list

__all__ = ["immutable_dict", "immutable_list"]
