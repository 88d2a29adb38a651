"""Graph modules as Python packages that people read, compare and edit, and that need nothing but torch to run."""

from __future__ import annotations

from fxplug.storage.export.package import ExportError, export_package

__all__ = ["ExportError", "export_package"]
