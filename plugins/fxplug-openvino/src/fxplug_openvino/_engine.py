"""The OpenVINO runtime: the only module that imports it, and not before something is to be built."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform
import sys
from typing import Any

from fxplug.errors import BackendError

__all__ = ["INSTALL", "core", "environment", "find_engine", "load_engine", "load_operations"]

INSTALL = 'Install it with: pip install "fxplug-openvino[engine]"'


def find_engine() -> str | None:
    """Return the version of the installed runtime, None when there is none; nothing is imported."""
    modules: dict[str, Any] = dict(sys.modules)
    if modules.get("openvino", modules) is None:  # As tests have it that do without.
        return None
    if importlib.util.find_spec("openvino") is None:
        return None
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def load_engine() -> Any:
    """Return the runtime.

    Raises:
        BackendError: It is not installed, or cannot be imported.
    """
    if find_engine() is None:
        raise BackendError(f"Cannot build with OpenVINO: its runtime is not installed. {INSTALL}")
    try:
        import openvino  # noqa: PLC0415 - importing it takes long
    except Exception as error:
        raise BackendError(
            f"Cannot build with OpenVINO: its runtime cannot be imported ({type(error).__name__}: {error}). {INSTALL}"
        ) from error
    return openvino


def load_operations() -> Any:
    """Return OpenVINO's operations.

    Raises:
        BackendError: It is not installed, or cannot be imported.
    """
    load_engine()
    from openvino import opset15  # noqa: PLC0415 - as above

    return opset15


@functools.cache
def core() -> Any:
    """Return the one entry to the runtime of this process."""
    return load_engine().Core()


def environment(device: str, converters: list[str]) -> dict[str, str]:
    """Return what a compiled model depends on besides the program and the options.

    Args:
        device: OpenVINO's name of it.
        converters: Distributions and versions of the plugins that write calls, too.

    Raises:
        BackendError: OpenVINO is missing, or does not have the device.
    """
    engine = load_engine()
    try:
        processor = str(core().get_property(device, "FULL_DEVICE_NAME"))
        abilities = sorted(core().get_property(device, "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError as error:
        raise BackendError(
            f"Cannot build with OpenVINO: it has no device {device!r}: {str(error).strip().splitlines()[-1]}"
        ) from error
    found = {
        "fxplug-openvino": _own_version(),
        "openvino": str(engine.__version__),
        "processor": f"{platform.machine()} {processor} ({' '.join(abilities)})",
    }
    return found | ({"converters": ", ".join(sorted(converters))} if converters else {})


def _own_version() -> str:
    try:
        return importlib.metadata.version("fxplug-openvino")
    except importlib.metadata.PackageNotFoundError:  # Run from a checkout that is not installed.
        return "of unknown version"
