"""A graph module as a folder of Python source and weights, which torch alone can load.

The source is generated from data: what users named or wrote stands in it only as literals, or as identifiers that were
checked to be such. The weights file holds tensors and plain values, and is read with ``weights_only=True``.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import keyword
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.codegen import as_identifier
from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.execute.guards import relies_on_state
from fxplug.execute.paths import module_at
from fxplug.execute.references import Libraries, UnreachableError, definition, path_expression
from fxplug.execute.written_guards import UnwritableGuardError, checking_method, with_check
from fxplug.ir import is_plain_name, iterate_leaves
from fxplug.semantics.internals import hook_tables_of, modules_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from fxplug.ir import Graph, Node

__all__ = ["given_state", "overriding_class", "write_folder"]

_WEIGHTS = "weights.pt"
_TABLES = ("_parameters", "_buffers", "_non_persistent_buffers_set")
_GRAPH_STATE = frozenset({"_graph", "_guards", "_compiled", "_class_name", "meta"})
_TENSORS = frozenset({torch.Tensor, nn.Parameter})
_PLAIN = _TENSORS | {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_CONTAINERS = frozenset({tuple, list, set, dict, OrderedDict})

_SUBMODULES = """\
\"\"\"What lies below the root, and how it gets its weights.\"\"\"

{imports}


def _fxp_restore(kind, state, children, more):
    \"\"\"Return a module with its state, made without running its constructor.\"\"\"
    module = object.__new__(kind)
    torch.nn.Module.__init__(module)
    module.__setstate__({{**vars(module), **state, "_modules": children, **more}})
    return module


def _fxp_load(root, map_location=None):
    \"\"\"Give the root its weights and submodules.\"\"\"
    path = pathlib.Path(__file__).with_name("weights.pt")
    states = torch.load(path, map_location=map_location, weights_only=True)
    children, more = _fxp_build(states)
    root.__setstate__({{**vars(root), **states[-1], "_modules": children, **more}})


def _fxp_build(_fxp_states):
    _fxp_modules = []
{lines}
    return {children}, {more}
"""


def overriding_class(module: nn.Module, kind: type[nn.Module]) -> type | None:
    """Return the class between that of `module` and `kind` which changes what a call does, None when none does."""
    for own in type(module).__mro__:
        if own is kind:
            break
        if "forward" in vars(own) or "__call__" in vars(own):
            return own
    return None


def write_folder(
    module: nn.Module, kind: type[nn.Module], folder: str | os.PathLike[str], class_name: str
) -> None:
    """Write a graph module as a package (see `GraphModule.to_folder`).

    Args:
        module: The module.
        kind: What graph modules are instances of.
        folder: Where.
        class_name: The class that the package defines.
    """
    _check_class_name(class_name)
    tree = _Tree(module, kind)
    files = {
        **tree.graphs,
        "submodules.py": tree.source,
        "module.py": _module_source(class_name, tree.forward_name),
        "__init__.py": f'"""A module that fxplug wrote."""\n\nfrom .module import {class_name}\n',
    }
    # Only what can be written as a whole is written.
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    torch.save(tree.states, target / _WEIGHTS)
    for name, source in files.items():
        (target / name).write_text(source, encoding="utf-8")


def _check_class_name(name: str) -> None:
    if not is_plain_name(name) or not name.isascii() or name.startswith("_"):
        raise InvalidArgumentError(
            f"Cannot write the module: its class cannot be called {name!r}. Use an identifier of ASCII letters, "
            "such as 'FxModule'."
        )
    if hasattr(builtins, name) or keyword.issoftkeyword(name):
        raise InvalidArgumentError(
            f"Cannot write the module: its class cannot be called {name!r}, which Python has as a name of its own. "
            "Use another one, such as 'FxModule'."
        )


def _module_source(class_name: str, forward_name: str) -> str:
    return (
        f'"""The module {class_name}."""\n\n'
        f"from .graph_0 import {forward_name} as _fxp_forward\n"
        "from .submodules import _fxp_load\n\n\n"
        f"class {class_name}(_fxp_forward):\n"
        "    def __init__(self, map_location=None):\n"
        "        super().__init__()\n"
        "        _fxp_load(self, map_location)\n"
    )


class _Tree:
    """A module tree as source and states: children stand before their parents, and each module once."""

    def __init__(self, root: nn.Module, kind: type[nn.Module]) -> None:
        self._graph_module = kind
        self.states: list[dict[str, Any]] = []
        """What the weights file holds of each module; that of the root is the last."""
        self.graphs: dict[str, str] = {}
        """File name -> source of a graph module's forward."""
        self._lines: list[str] = []
        self._imports: set[str] = {"import pathlib", "import torch"}
        self._numbers: dict[int, int] = {}
        self.forward_name = self._add_graph(root, "")
        """The class with the forward of the root."""
        children, more = self._children(root, ""), self._take_state(root, "")
        self.source = _SUBMODULES.format(
            imports="\n".join(sorted(self._imports)),
            lines="\n".join(self._lines),
            children=children,
            more=more,
        )
        """The file that puts the tree together."""

    def _add(self, module: nn.Module, path: str) -> int:
        number = self._numbers.get(id(module))
        if number is None:
            kind, children = self._kind(module, path), self._children(module, path)
            more = self._take_state(module, path)
            number = self._numbers[id(module)] = len(self.states) - 1
            restored = f"_fxp_restore({kind}, _fxp_states[{number}], {children}, {more})"
            self._lines.append(f"    _fxp_modules.append({restored})")
        return number

    def _children(self, module: nn.Module, path: str) -> str:
        entries: list[str] = []
        for name, child in modules_of(module).items():
            number = None if child is None else self._add(child, f"{path}.{name}" if path else name)
            entries.append(f"{str.__str__(name)!r}: {None if number is None else f'_fxp_modules[{number}]'}")
        return "{" + ", ".join(entries) + "}"

    def _kind(self, module: nn.Module, path: str) -> str:
        if not isinstance(module, self._graph_module):
            return self._reference(type(module), f"the class of submodule {path!r}")
        name, number = self._add_graph(module, path), len(self.graphs) - 1
        self._imports.add(f"from .graph_{number} import {name} as _fxp_graph_{number}")
        return f"_fxp_graph_{number}"

    def _add_graph(self, module: nn.Module, path: str) -> str:
        own = overriding_class(module, self._graph_module)
        if own is not None:
            raise _refusal(
                f"{_described(path)} is of the class {own.__module__}.{own.__qualname__}, whose own forward or "
                "__call__ is no part of the graph"
            )
        name, source = _forward_source(module, _described(path))
        self.graphs[f"graph_{len(self.graphs)}.py"] = source
        return name

    def _reference(self, value: Any, what: str) -> str:
        try:
            import_line, expression = path_expression(value)
        except UnreachableError as error:
            raise _refusal(f"{what} {error}") from None
        self._imports.add(import_line)
        return expression

    def _take_state(self, module: nn.Module, path: str) -> str:
        """Take in the state of one module; return source of a dict with what the weights file cannot hold of it."""
        where, default, state = _described(path), vars(nn.Module()), given_state(module)
        kept: dict[str, Any] = {"training": module.training, **{name: state[name] for name in _TABLES}}
        for name, tensor in (*state["_parameters"].items(), *state["_buffers"].items()):
            if tensor is not None and type(tensor) not in _TENSORS:
                raise _refusal(f"{where} has {name!r}, which is a {type(tensor).__name__}")
            if tensor is not None and any(hook_tables_of(tensor)):
                raise _refusal(
                    f"{where} has {name!r}, which has hooks that no file can hold; remove them first"
                )
        more: list[str] = []
        own = _GRAPH_STATE if "_graph" in state else frozenset[str]()
        for name in state.keys() - kept.keys() - own - {"_modules", "_is_full_backward_hook"}:
            value = state[name]
            if name in default:
                if value:
                    raise _refusal(f"{where} has hooks ({name}), which no file can hold; remove them first")
            elif _is_plain(value):
                kept[name] = value
            else:
                expression = self._reference(value, f"{where} has the attribute {name!r}, which")
                more.append(f"{str.__str__(name)!r}: {expression}")
        self.states.append(kept)
        return "{" + ", ".join(sorted(more)) + "}"


def _described(path: str) -> str:
    return f"submodule {path!r}" if path else "the module itself"


def _refusal(reason: str) -> GraphError:
    return GraphError(
        f"Cannot write the module: {reason}. Change that, or use fxplug.save, which stores other things.",
        code="FXP-G011",
    )


def given_state(module: nn.Module) -> dict[str, Any]:
    """Return what a module is made again from: what its class hands out for that, or everything that is set on it."""
    # Classes with a __getstate__ of their own drop what they rebuild. The one of object is new in Python 3.11.
    own = inspect.getattr_static(type(module), "__getstate__", None)
    if own is None or own is inspect.getattr_static(object, "__getstate__", None) or "_graph" in vars(module):
        return dict(vars(module))
    return dict(cast("Any", module).__getstate__())


def _is_plain(value: Any) -> bool:
    """Return whether ``torch.load`` takes a value in without being told to trust anything."""
    stack, seen = [value], set[int]()
    while stack:
        item: Any = stack.pop()
        if type(item) in _CONTAINERS:
            if id(item) in seen:
                continue
            seen.add(id(item))
            stack.extend([*item.keys(), *item.values()] if isinstance(item, dict) else item)
        elif type(item) not in _PLAIN:
            return False
    return True


# -- one graph


def _forward_source(module: Any, where: str) -> tuple[str, str]:
    """Return the name of a class with the forward of a graph module, and the file that defines it."""
    code = _with_plain_annotations(module.graph).python_code("self")
    libraries = Libraries(code.globals)
    imports, lines = list[str](), list[str]()
    for name, value in code.globals.items():
        try:
            statements = definition(name, value, libraries)
        except UnreachableError as error:
            users = ", ".join(repr(node.name) for node in _users_of(module.graph, value)) or repr(name)
            raise _refusal(f"{where} uses a value (in node {users}) that {error}") from None
        for line in statements:
            (imports if line.startswith(("import ", "from ")) else lines).append(line)
    kind = "Forward"
    while kind in code.globals:
        kind = f"_{kind}"
    note = f'"""A forward that fxplug generated for {as_identifier(module._get_name())}."""'
    base = libraries.name("torch")
    name = _free_name(module, "_fxp_check")
    check = _check(module, where, name, libraries)
    forward = with_check(code.src, name) if check else code.src
    head = "\n".join([note, "", *libraries.imports(), *dict.fromkeys(imports), *lines])
    # Inside a class, Python would read names that begin with two underscores as others.
    methods = f"    forward = {code.function_name}\n{check and chr(10) + check}{_switching(module)}"
    return kind, f"{head}\n\n\n{forward}\n\nclass {kind}({base}.nn.Module):\n{methods}"


def _free_name(module: Any, name: str) -> str:
    """Return a name that a module has nothing under."""
    while hasattr(module, name):
        name = f"{name}_"
    return name


def _check(module: Any, where: str, name: str, libraries: Libraries) -> str:
    """Return the method that checks that a module is used as it was captured; empty where there is nothing to check."""
    if module.guard_set is None and not relies_on_state(module.graph):
        return ""
    try:
        return checking_method(module, name, libraries)
    except UnwritableGuardError as error:
        raise _refusal(f"{where} {error}") from None


def _switching(module: Any) -> str:
    """Return the method that puts modules into their modes which the classes of the program do not let torch switch."""
    overrides: dict[str, tuple[bool, bool]] = module.graph.training_overrides
    held = {path: flags for path, flags in overrides.items() if module_at(module, path) is not None}
    if not held:
        return ""
    lines = [
        f"        self.get_submodule({str.__str__(path)!r}).training = {flags[0]} if mode else {flags[1]}\n"
        for path, flags in held.items()
    ]
    return (
        "\n    def train(self, mode=True):\n        super().train(mode)\n"
        f"{''.join(lines)}        return self\n"
    )


def _with_plain_annotations(graph: Graph) -> Graph:
    """Return a copy in which every annotation is a class that an import finds; others are only for people."""
    other = copy.deepcopy(graph)
    for node in other.nodes:
        try:
            if node.type is not None:
                definition("annotation", node.type, Libraries(()))
        except UnreachableError:
            node.type = None
    return other


def _users_of(graph: Graph, value: Any) -> Iterator[Node]:
    for node in graph.nodes:
        values = (node.target, *iterate_leaves((node.args, node.kwargs)))
        if any(one is value for one in values):
            yield node
