"""What torch calls mean: how they are called and what they do. Importing this package tells the layers below."""

from __future__ import annotations

import fxplug.semantics.names  # pyright: ignore[reportUnusedImport] - registers when imported
import fxplug.semantics.quantization  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers when imported
from fxplug.semantics.effects import has_side_effect
from fxplug.semantics.modules import module_effect
from fxplug.semantics.normalization import normalize_function, normalize_module
from fxplug.semantics.random_state import kept_random_state

__all__ = ["has_side_effect", "kept_random_state", "module_effect", "normalize_function", "normalize_module"]
