"""Saving a graph module into one file, and loading it again."""

from __future__ import annotations

import functools
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.errors import FxplugError, StorageError
from fxplug.execute import GraphModule
from fxplug.ir.collector import paused_collection
from fxplug.semantics.internals import with_data
from fxplug.storage.container import GRAPHS, MODULES, WEIGHTS, Contents, read_container, write_container
from fxplug.storage.engines import engines_in
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places
from fxplug.storage.graphs import GraphReader, GraphWriter, check_graph
from fxplug.storage.module_reader import ModuleReader
from fxplug.storage.modules import ModuleWriter, StandIn
from fxplug.storage.provisions import Provision, Provisions
from fxplug.storage.targets import TargetTable
from fxplug.storage.tensors import TensorReader, TensorWriter
from fxplug.storage.values import Decoder, Encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fxplug.ir import Graph
    from fxplug.storage.weights import Progress

__all__ = ["describe", "load", "save"]

_MODULE_FIELDS = frozenset({"module_kinds", "modules", "tensor_kinds", "tensors"})
_GRAPH_FIELDS = frozenset({"graphs"})


# -- saving


def save(
    module: GraphModule,
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    progress: Progress | None = None,
    provisions: Callable[[], Provisions] | None = None,
    stand_in: StandIn | None = None,
) -> None:
    """Write a graph module into one file, from which `load` restores it exactly, running nothing.

    Kept are the graph with its names, arguments, annotations, regions and origins; parameters and buffers with their
    ties, strides and gradient flags; training flags; and submodules of the classes that `torch.nn` ships, or that
    ``onednn-fuse`` puts in their place. Entries of ``node.meta`` and ``module.meta`` are kept when they consist of
    plain values, torch's constants, functions that a file may name, and `fxplug.analyze.TensorMetadata`; what is left
    out is listed in the file's manifest under ``"left_out_meta"``. Not kept are ``node.meta["val"]``, gradients,
    Python attributes of tensors, and devices: tensors come back on the CPU, except those on the meta device.

    Origins name the source files and lines that the program came from, so a file tells them to whoever reads
    it.

    The file is complete or not there: when saving fails, an older file at `path` is untouched.

    Args:
        module: What to save. It is not changed.
        path: The file, by convention with the extension ``.fxplug``. Its folder must exist.
        allow: What the module uses and a file may not name by itself, as ``"package.module:name"``: functions that
            the graph calls, classes of submodules, and classes of enums, namedtuples and dataclasses among the
            arguments; and methods that neither tensors nor plain values have, as ``".name"``. `load` needs the same.
        progress: Called with the number of bytes of weights that are written, and of all.
        provisions: Returns what plugins bring; asked when the module holds something that fxplug does not know.
        stand_in: Returns what is written in the place of a submodule and its path; None for the submodule itself.

    Raises:
        StorageError: The module holds something that a file cannot, or the file cannot be written. The
            message names the node, submodule or path and says what to do.

    Example:
        >>> fxplug.save(module, "model.fxplug")  # doctest: +SKIP
        >>> fxplug.load("model.fxplug")  # doctest: +SKIP
    """
    if type(module) is not GraphModule:
        raise StorageError(
            f"Cannot save a {type(module).__module__}.{type(module).__qualname__}: only a "
            f"fxplug.GraphModule can be stored. Make one with fxplug.symbolic_trace(...) first.",
            code=Codes.UNSTORABLE,
        )
    target = _file_at(path, "save to")
    with paused_collection(), with_data():
        _write(module, target, lambda: TargetTable(allow, Provision(provisions)), progress, stand_in)


def _write(
    module: GraphModule,
    target: Path,
    make_targets: Callable[[], TargetTable],
    progress: Progress | None,
    stand_in: StandIn | None,
) -> None:
    try:
        targets = make_targets()
        contents, left_out = describe(module, targets, progress, stand_in)
    except Refusal as refusal:
        raise _not_saved(target, refusal) from refusal.__cause__
    except RecursionError as error:
        raise StorageError(
            f"Cannot save to {str(target)!r}: the module tree is nested too deeply, or contains itself. "
            f"Flatten it.",
            code=Codes.UNSTORABLE,
        ) from error
    about = {
        "fxplug_version": _fxplug_version(),
        "torch_version": str(torch.__version__),
        **engines_in(contents[MODULES], targets.provision.providers),
        "left_out_meta": left_out,
    }
    try:
        write_container(target, contents, about)
    except Refusal as refusal:
        raise _not_saved(target, refusal) from None
    except OSError as error:
        raise StorageError(
            f"Cannot save to {str(target)!r}: {error.strerror or error}. Check that the folder exists, can "
            f"be written and has room.",
            code=Codes.UNREACHABLE,
        ) from error


def _file_at(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path that can be one."""
    if not isinstance(cast("object", path), (str, os.PathLike)):
        raise StorageError(
            f"Cannot {what} a {type(path).__name__}: pass the path of a file. For bytes in memory, use a file in a "
            "tempfile.TemporaryDirectory().",
            code=Codes.UNREACHABLE,
        )
    found = Path(path)
    try:
        usable = b"\0" not in os.fsencode(found)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise StorageError(
            f"Cannot {what} {str(found)!r}: no file can have this name. Check the path.",
            code=Codes.UNREACHABLE,
        )
    return found


def _not_saved(target: Path, refusal: Refusal) -> StorageError:
    return StorageError(f"Cannot save to {str(target)!r}: {refusal}", code=refusal.code or Codes.UNSTORABLE)


@functools.lru_cache(maxsize=1)
def _fxplug_version() -> str:
    try:
        return metadata.version("fxplug")
    except metadata.PackageNotFoundError:  # Run from a checkout that is not installed.
        return "unknown"


def describe(
    module: GraphModule,
    targets: TargetTable,
    progress: Progress | None,
    stand_in: StandIn | None = None,
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the members of the file of a module, and what is left out of them; see `save`.

    Raises:
        Refusal: It holds something that a file cannot.
    """
    tensors = TensorWriter()
    left_out: list[dict[str, str]] = []
    graphs: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}
    encoder, notes = Encoder(targets, lambda tensor: tensors.add_checked(tensor, "tensor")), Encoder(targets)

    def note(path: str, node: str, what: str) -> None:
        left_out.append({"module": path, "node": node, "what": what})

    def add_graph(owner: GraphModule, path: str, graph: Graph) -> int:
        number = numbers.get(id(graph))
        if number is not None:
            return number
        try:
            check_graph(graph, owner)
            writer = GraphWriter(targets, encoder, notes, lambda node, what: note(path, node, what))
            graphs.append(writer.describe(graph))
        except Refusal as refusal:
            if path:
                raise refusal.within(f"submodule {path!r}") from None
            raise
        number = numbers[id(graph)] = len(graphs) - 1
        return number

    modules = ModuleWriter(
        encoder, notes, tensors, add_graph, lambda path, name: note(path, "", f"meta[{name!r}]"), stand_in
    )
    modules.add(module)
    tables, weights = tensors.finish(progress)
    contents = {
        GRAPHS: {"graphs": graphs},
        MODULES: {"module_kinds": modules.kinds, "modules": modules.rows, **tables},
        WEIGHTS: weights,
    }
    return contents, left_out


# -- loading


def load(
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    lazy: bool = False,
    progress: Progress | None = None,
    provisions: Callable[[], Provisions] | None = None,
) -> GraphModule:
    """Restore a graph module from a file that `save` wrote.

    Loading is safe with files from strangers: nothing is unpickled, compiled or run, and nothing is imported
    that `allow` does not name. The functions that the graph calls are looked up in a closed table of torch's
    operators, `operator`, `math` and harmless builtins. The graph is compiled when the module is first
    called.

    Args:
        path: The file.
        allow: What the file may name besides, as ``"package.module:name"``; the modules are imported. Methods beyond
            those of tensors and plain values as ``".name"``.
        lazy: Map the weights into memory instead of reading them: the system fetches each page when it is first
            needed, and copies it when it is written to, so that the file stays what it is. Their checksum is not
            verified. As long as a tensor of the module is in use the file must not be changed in place; `save`
            replaces it, which is no change (Windows refuses to replace a file that is mapped).
        progress: Called with the number of bytes of weights that were read, and of all; not called when `lazy`.
        provisions: Returns what plugins bring; asked when the file names something of a plugin.

    Returns:
        The module, on the CPU, with the training flags it was saved with.

    Raises:
        StorageError: The file is missing, damaged, of a newer version, or names a function that is not
            allowed. The message says which, and what to do.
    """
    source = _file_at(path, "load")
    try:
        # A document is thousands of lists, and each collection meanwhile would walk all of them in vain.
        with paused_collection(), with_data():
            contents = read_container(source, lazy=lazy, progress=progress)
            return _restore(contents, TargetTable(allow, Provision(provisions)))
    except FileNotFoundError as error:
        raise StorageError(
            f"Cannot load {str(source)!r}: there is no such file. Check the path.", code=Codes.UNREACHABLE
        ) from error
    except OSError as error:
        raise StorageError(
            f"Cannot load {str(source)!r}: {error.strerror or error}. Check the path.", code=Codes.UNREACHABLE
        ) from error
    except Refusal as refusal:
        raise StorageError(
            f"Cannot load {str(source)!r}: {refusal}", code=refusal.code or Codes.DAMAGED
        ) from refusal.__cause__


def _restore(contents: Contents, targets: TargetTable) -> GraphModule:
    described = entry_fields(contents.modules, MODULES, _MODULE_FIELDS, frozenset())
    tensors = TensorReader(described["tensor_kinds"], described["tensors"], contents.weights)
    decoder, notes = Decoder(targets, tensors.fetch), Decoder(targets)
    fields = entry_fields(contents.graphs, GRAPHS, _GRAPH_FIELDS, frozenset())
    targets.provision.read_providers(contents.manifest.get("plugins"))
    try:
        graphs: list[Graph] = [
            GraphReader(targets, decoder, notes).restore(data)
            for data in checked(fields["graphs"], list, "The list of graphs")
        ]
        reader = ModuleReader(
            decoder,
            notes,
            tensors,
            lambda number: graphs[places(number, len(graphs), "The number of a graph")],
        )
        module = reader.restore(described["module_kinds"], described["modules"])
        if not isinstance(module, GraphModule):
            raise Refusal("its outermost module has no graph. The file is damaged.")
        for part in reader.graph_modules():
            check_graph(part.graph, part, is_built=True)
            if part.guard_set is not None and part.guard_set.graph is not None:
                check_graph(part.guard_set.graph, part, is_built=True)
    except (FxplugError, LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise Refusal(f"its content does not fit together: {error}. The file is damaged.") from error
    return module
