"""The marks by which pluggy recognises what belongs to fxplug."""

from __future__ import annotations

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "fxplug"
"""pluggy's project name, and the entry-point group in which plugins are found."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a function as the declaration of a hook."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's entry module as the implementation of the hook that has its name.

``@hookimpl(tryfirst=True)`` and ``@hookimpl(trylast=True)`` move an implementation to the front or the back;
``@hookimpl(optionalhook=True)`` allows a hook that no installed distribution declares.
"""
