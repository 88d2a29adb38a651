"""Graph modules in files: exact, complete, and loaded without running anything.

A file is a zip archive with four members:

``manifest.json``
    The format version, the versions of fxplug and torch that wrote the file, size and SHA-256 of the other
    members, and what was left out of the notes (``left_out_meta``: path of the module, name of the node, and
    which note).
``graph.json``
    One entry for each graph: the data form of `fxplug.ir`, values as told in `fxplug.storage.values`,
    functions by name; and, where plugins brought some of those names, ``"providers"``: the plugin's name with
    its distribution and version.
``modules.json``
    The module tree: class, attributes and training flag of each module, children before parents, the last one
    being the root; and the table of tensors.
``weights.safetensors``
    The bytes of all tensors, uncompressed, readable by any tool that knows safetensors.

What a file may name is a closed table (`fxplug.storage.targets`); whoever loads a file can widen it with
``allow=``.
"""

from __future__ import annotations

from fxplug.storage.container import FORMAT_VERSION
from fxplug.storage.inspection import FileSummary, summarize
from fxplug.storage.module_file import load, save
from fxplug.storage.provisions import ProvidedConstant, ProvidedTarget, Provisions, StorageTargetRecord

__all__ = [
    "FORMAT_VERSION",
    "FileSummary",
    "ProvidedConstant",
    "ProvidedTarget",
    "Provisions",
    "StorageTargetRecord",
    "load",
    "save",
    "summarize",
]
