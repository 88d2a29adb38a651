"""What a module, its graph and the process are like, to be compared before and after something ran."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.analyze.isolation import forked_random_state
from fxplug.capture import TraceContext, TraceEvent
from fxplug.execute import GraphModule
from fxplug.ir import Graph, Node
from fxplug.passes import PassEvent
from fxplug.semantics.internals import storage_of
from fxplug.testing.probe import Watch, state

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

__all__ = [
    "effects_besides",
    "fingerprint",
    "kept_process",
    "node_state",
    "notes_text",
    "own_state",
    "plain_text",
]

_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def plain_text(value: Any) -> str:
    """Return the text of a plain value or a container of such; of others the class, as they may show an address."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return f"{{{', '.join(f'{plain_text(key)}: {plain_text(entry)}' for key, entry in pairs)}}}"
    name = type(value).__name__
    if isinstance(value, (set, frozenset)):
        return f"{name}({', '.join(sorted(map(plain_text, cast('set[Any]', value))))})"
    if isinstance(value, (list, tuple)):
        return f"{name}({', '.join(map(plain_text, cast('list[Any]', value)))})"
    return name


# -- graphs --------------------------------------------------------------------------------------------------


def node_state(node: Node) -> tuple[Any, ...]:
    """Return what a node is: what it calls with what, its notes, and where it comes from."""
    return (
        node.op,
        node.name,
        str(node.target),
        str(node.args),
        str(node.kwargs),
        plain_text(dict(node.meta)),
        node.origins,
    )


def notes_text(graph: Graph) -> str:
    """Return the notes of all nodes as text."""
    return "\n".join(plain_text(dict(node.meta)) for node in graph.nodes)


# -- modules -------------------------------------------------------------------------------------------------


def fingerprint(module: GraphModule) -> tuple[Any, ...]:
    """Return what tells a module from another one: graph, parts, tensors, hooks and plain attributes."""
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return (
        str(module.graph),
        tuple((path, type(part)) for path, part in module.named_modules() if path),
        tuple(
            (path, str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, _digest(tensor))
            for path, tensor in tensors
        ),
        tuple((path, *own_state(part)) for path, part in module.named_modules()),
    )


def own_state(module: nn.Module) -> tuple[Any, ...]:
    """Return the hooks and public plain attributes of a module, without what its submodules have."""
    attributes = vars(module)
    hooks = [
        (name, [getattr(hook, "__qualname__", type(hook).__name__) for hook in value.values()])
        for name, value in attributes.items()
        if name.endswith("_hooks") and isinstance(value, dict)
    ]
    plain = {name: plain_text(value) for name, value in attributes.items() if not name.startswith("_")}
    return str(hooks), tuple(sorted(plain.items()))


def _digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    # repr, so that one that is not a number equals itself.
    return tuple(map(repr, tensor.detach().flatten().tolist())) if tensor.device.type != "meta" else ()


# -- what hooks are handed -----------------------------------------------------------------------------------


class Seen:
    """The nodes and modules that the arguments of a hook lead to, as they are now.

    Args:
        arguments: Of a hook.
    """

    def __init__(self, arguments: Iterable[Any]) -> None:
        nodes: dict[Node, tuple[Any, ...]] = {}
        modules: dict[int, nn.Module] = {}
        for value in _reached(arguments):
            if isinstance(value, Graph):
                nodes.update((node, node_state(node)) for node in value.nodes)
            elif isinstance(value, nn.Module):
                modules[id(value)] = value
        self._nodes = nodes
        self._modules = [
            {
                f"{name!r} of the module {path!r}": state
                for path, part in module.named_modules()
                for name, state in _live_state(part)
            }
            for module in modules.values()
        ]

    def changed_nodes(self, after: Seen) -> list[str]:
        """Return the names of the nodes that are others afterwards."""
        nodes = {**after._nodes, **self._nodes}
        return [
            str(state[1]) for node, state in nodes.items() if self._nodes.get(node) != after._nodes.get(node)
        ]

    def changed_modules(self, after: Seen) -> list[str]:
        """Return which attributes of which modules are others afterwards."""
        return [
            text
            for old, new in zip(self._modules, after._modules, strict=False)
            for text in {**old, **new}
            if old.get(text) != new.get(text)
        ]


def _reached(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield value
        if isinstance(value, (Node, GraphModule)):
            yield value.graph
        elif isinstance(value, TraceContext):
            yield value.root
        elif isinstance(value, TraceEvent):
            yield from (value.context.root, value.graph)
        elif isinstance(value, PassEvent):
            yield from _reached((value.module,))


def _live_state(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module, each with what tells it from another one or from itself when it was changed."""
    for name, value in vars(module).items():
        if isinstance(value, dict):
            for key, entry in cast("dict[Any, Any]", value).items():
                yield str(key), _identity(entry)
        else:
            yield name, _identity(value)


def _identity(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), storage_of(value), value._version, value.requires_grad
    return id(value), plain_text(value)


# -- the process ---------------------------------------------------------------------------------------------


class _OneThread(Watch):
    """Hears what one thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = 0
        self.lock = threading.Lock()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and threading.get_ident() == self.thread:
            super().__call__(event, arguments)


@cache
def _watch() -> _OneThread:
    """Return the only watch of this process: it cannot be taken away again."""
    watch = _OneThread()
    sys.addaudithook(watch)
    return watch


@contextmanager
def effects_besides() -> Generator[list[str]]:
    """Write down what this thread does to the process, to files and to others.

    Yields:
        A list that holds clauses afterwards: "writes the file 'x'".
    """
    found: list[str] = []
    watch = _watch()
    # A seed that is set to what it was shows only if something was drawn since.
    torch.rand(())
    random.random()
    with watch.lock:
        watch.effects.clear()
        before = state()
        watch.thread, watch.is_on = threading.get_ident(), True
        try:
            yield found
        finally:
            watch.is_on = False
            after = state()
            found += [f"it changes {name}" for name, value in after.items() if value != before[name]]
            found += [f"it {effect}" for effect in watch.effects]


@contextmanager
def kept_process() -> Generator[None]:
    """Give back variables, folder, filters of warnings, random states and settings of torch as they were."""
    environ, folder, hook = dict(os.environ), Path.cwd(), sys.excepthook
    dtype, has_gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    with forked_random_state(), warnings.catch_warnings():
        try:
            yield
        finally:
            for name in set(os.environ) - set(environ):
                del os.environ[name]
            os.environ.update(environ)
            os.chdir(folder)
            sys.excepthook = hook
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(has_gradients)
            torch.use_deterministic_algorithms(is_deterministic)
