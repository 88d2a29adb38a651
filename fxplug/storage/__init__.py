"""Graph modules in files: exact, complete, and loaded without running anything.

A file is a zip archive with four members:

``manifest.json``
    The format version, the versions of fxplug and torch that wrote the file, size and SHA-256 of the other
    members, distribution and version of the plugins that brought names, and what was left out of the notes.
``graph.json``
    One entry for each graph: the data form of `fxplug.ir`, values as told in `fxplug.storage.values`,
    functions by name.
``modules.json``
    The module tree: class, attributes and training flag of each module, children before parents, the last one
    being the root; and the table of tensors.
``weights.safetensors``
    The bytes of all tensors, uncompressed, readable by any tool that knows safetensors.

``docs/format.md`` is the specification.

What a file may name is a closed table (`fxplug.storage.targets`); whoever loads a file can widen it with
``allow=``.
"""

from __future__ import annotations

from fxplug.storage.digest import module_digest
from fxplug.storage.engines import StoredEngine
from fxplug.storage.inspection import FileSummary, summarize
from fxplug.storage.migrations import FORMAT_VERSION
from fxplug.storage.module_file import load, save
from fxplug.storage.provisions import ProvidedConstant, ProvidedTarget, Provisions, StorageTargetRecord

__all__ = [
    "FORMAT_VERSION",
    "FileSummary",
    "ProvidedConstant",
    "ProvidedTarget",
    "Provisions",
    "StorageTargetRecord",
    "StoredEngine",
    "load",
    "module_digest",
    "save",
    "summarize",
]
