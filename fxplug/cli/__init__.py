"""The command line."""

from __future__ import annotations

from fxplug.cli.app import main

__all__ = ["main"]
