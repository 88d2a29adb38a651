"""The package: its files, put together and written all at once."""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from fxplug.codegen import as_identifier
from fxplug.codegen.formatting import FixedName, format_statements
from fxplug.errors import FxplugError, InvalidArgumentError, StorageError
from fxplug.execute import GraphModule
from fxplug.execute.folder import overriding_class
from fxplug.execute.paths import module_at
from fxplug.ir import is_plain_name, printable
from fxplug.storage.export.guards import CHECKS_FILE, check_program, guard_call
from fxplug.storage.export.names import Names
from fxplug.storage.export.programs import Program, parameter_names, read_program
from fxplug.storage.export.provided import ProvidedPackages
from fxplug.storage.export.tree import RESTORE, ModuleText, held_tensors, walk
from fxplug.storage.faults import Refusal
from fxplug.storage.folders import OutputFolder
from fxplug.storage.provisions import Provision

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

    from fxplug.storage.provisions import Provisions

__all__ = ["ExportError", "export_package"]

_MODEL, _WEIGHTS, _CHECKS, _MARK = "model.py", "weights.pt", "checks.py", "report.json"
_FILES = ("__init__.py", _MODEL, _WEIGHTS, _CHECKS, _MARK, "__pycache__")
_FORMAT = "fxplug-package"
_TAKEN = frozenset({"nn", "F", "torch", "pytree", "load", RESTORE})
"""Names that no class of a package has, since its files may use them for something else."""
_WIDTH = 88

_INIT = '''\
"""{summary}

{about}{needs}
"""

from pathlib import Path

import torch

from .model import {class_name}

__all__ = [{exports}]


def load(map_location=None):
    """Return the module with its weights, on the devices that `map_location` says."""
    file = Path(__file__).with_name("weights.pt")
    tensors = torch.load(file, map_location=map_location, weights_only=True)
    with torch.device("meta"):
        module = {class_name}()
    for path, tensor in tensors.items():
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, tensor)
    return module
'''

_RESTORE = f'''\
def {RESTORE}(kind, attributes):
    """Return a module with these attributes, made without running its constructor."""
    module = object.__new__(kind)
    nn.Module.__init__(module)
    module.__setstate__({{**vars(module), **attributes}})
    return module
'''


class ExportError(StorageError):
    """A module cannot be written as Python."""

    code = "FXP-S020"


def export_package(
    module: GraphModule,
    folder: str | os.PathLike[str],
    *,
    class_name: str | None = None,
    overwrite: bool = False,
    provisions: Callable[[], Provisions] | None = None,
) -> None:
    """Write a graph module as a Python package; see `fxplug.export_python`, which this is.

    Args:
        module: The module.
        folder: Where.
        class_name: The class that the package defines.
        overwrite: Whether a package that stands there is replaced.
        provisions: Returns what plugins bring; called when the module holds something that torch does not have.

    Raises:
        ExportError: Something cannot be written.
        InvalidArgumentError: The name cannot be that of a class.
    """
    if not isinstance(cast("object", module), GraphModule):
        raise ExportError(
            f"Cannot export a {type(module).__module__}.{type(module).__qualname__}: only a fxplug.GraphModule can be "
            "written as Python. Make one with fxplug.trace(...) first."
        )
    name = as_identifier(module._get_name()) if class_name is None else class_name  # pyright: ignore[reportPrivateUsage]
    _check_class_name(name)
    target = Path(folder)
    try:
        files, tensors = _Package(module, name, ProvidedPackages(Provision(provisions))).files()
    except Refusal as refusal:
        raise ExportError(f"Cannot export the module as Python: {refusal}") from refusal.__cause__
    except RecursionError as error:
        raise ExportError(
            "Cannot export the module as Python: something in it is nested too deeply. Flatten it."
        ) from error
    _write(target, files, tensors, overwrite=overwrite)


def _check_class_name(name: str) -> None:
    if not is_plain_name(name) or not name.isascii() or name.startswith("__") or name in _TAKEN:
        raise InvalidArgumentError(
            f"Cannot export the module: its class cannot be called {name!r}. Pass an identifier of ASCII letters, such "
            "as class_name='Model'."
        )
    if hasattr(builtins, name) or keyword.issoftkeyword(name):
        raise InvalidArgumentError(
            f"Cannot export the module: its class cannot be called {name!r}, which Python has as a name of its own. "
            "Pass another one, such as class_name='Model'."
        )


def _write(target: Path, files: dict[str, str], tensors: dict[str, torch.Tensor], *, overwrite: bool) -> None:
    if not overwrite and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(
            f"Cannot export to {str(target)!r}: it exists. Name another folder, or pass overwrite=True to replace a "
            "package that fxplug wrote there."
        )
    with OutputFolder(target, _FILES, _FORMAT).writing() as place:
        for name, text in files.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text, encoding="utf-8", newline="\n")
        try:
            torch.save(_without_attributes(tensors), place / _WEIGHTS)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            raise ExportError(
                f"Cannot export to {str(target)!r}: the weights cannot be saved: {error}. Use plain tensors."
            ) from error


def _without_attributes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with the same memory, and without what else Python holds in them: no file of weights has that."""
    new: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if vars(tensor) and id(tensor) not in new:
            with torch.inference_mode(tensor.is_inference()):
                bare = tensor.detach()
                new[id(tensor)] = (
                    nn.Parameter(bare, tensor.requires_grad)
                    if isinstance(tensor, nn.Parameter)
                    else bare.requires_grad_(tensor.requires_grad)
                )
    return {path: new.get(id(tensor), tensor) for path, tensor in tensors.items()}


class _Package:
    """The files of one package.

    Args:
        root: The module.
        class_name: Its class in the package.
        provided: What plugins put beside it.
    """

    def __init__(self, root: GraphModule, class_name: str, provided: ProvidedPackages) -> None:
        self._root = root
        self._provided = provided
        modules = [part for _, part in walk(root) if isinstance(part, GraphModule)]
        taken = {name for part in modules for name in parameter_names(part.graph)}
        self._names = Names(taken, provided)
        self._class_names: dict[int, str] = {id(root): class_name}
        self._classes: list[list[str]] = []
        self._restores = False
        self._names.reserve(class_name)
        self._names.reserve(RESTORE)

    def files(self) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        """Return the text of each file, and the weights."""
        tensors = held_tensors(self._root)
        self._add(self._root, "")
        class_name = self._class_names[id(self._root)]
        names = self._names
        clashing = names.bound().intersection(self._class_names.values())
        if clashing:
            raise Refusal(
                f"a class is called {min(clashing)!r}, as something that the program imports is. Pass another name, "
                "such as class_name='Model'."
            )
        restore = [_RESTORE.rstrip("\n").split("\n")] if self._restores else []
        if restore:
            names.nn()
        body = "\n\n\n".join("\n".join(block) for block in (*restore, *self._classes))
        used = {part.id for part in ast.walk(ast.parse(body)) if isinstance(part, ast.Name)}
        head = [f'"""The module {class_name}."""', "", *names.import_lines(used)]
        model = "\n".join(head) + f"\n\n\n{body}\n"
        needs = sorted(names.distributions)
        listed = ", ".join(needs)
        mark = {"format": _FORMAT, "class": class_name, "imports": needs, "files": self._provided.folders()}
        note = f"\n{_wrapped(f'Besides torch, it imports {listed}.')}" if needs else ""
        files = {
            "__init__.py": _INIT.format(
                summary=f"The module {class_name}, written by fxplug.",
                class_name=class_name,
                about=_wrapped(f"``load()`` gives the module with its weights, {class_name} is its class."),
                exports=_exports(class_name),
                needs=note,
            ),
            _MODEL: model,
            _MARK: json.dumps(mark, indent=2) + "\n",
            **self._provided.files(),
        }
        if names.checks:
            files[_CHECKS] = CHECKS_FILE
        return files, tensors

    def _class_of(self, module: GraphModule) -> str:
        known = self._class_names.get(id(module))
        if known is None:
            base = as_identifier(module._get_name())  # pyright: ignore[reportPrivateUsage]
            known, number = base, 1
            while known in self._class_names.values() or not self._is_free(known):
                number += 1
                known = f"{base}{number}"
            self._class_names[id(module)] = known
            self._names.reserve(known)
            path = next(".".join(path) for path, part in walk(self._root) if part is module)
            self._add(module, path)
        return known

    def _is_free(self, name: str) -> bool:
        """Return whether a class can have a name: nothing has it, and no import of what follows will."""
        taken = name in _TAKEN or name in sys.modules or name in self._names.used()
        return not (taken or hasattr(builtins, name))

    def _add(self, module: GraphModule, path: str) -> None:
        """Write the class of one graph module, after those of the graph modules below it."""
        where = f"submodule {path!r}" if path else "the module itself"
        own = overriding_class(module, GraphModule)
        if own is not None:
            raise Refusal(
                f"{where} is of the class {own.__module__}.{own.__qualname__}, whose own forward or __call__ is no "
                "part of the graph. Export a plain fxplug.GraphModule."
            )
        tree = ModuleText(module, self._names, self._class_of)
        self._restores = self._restores or tree.restores
        try:
            with _as_refusals():
                methods = self._methods(module, tree)
        except Refusal as refusal:
            raise (refusal.within(where) if path else refusal) from refusal.__cause__
        name = self._class_names[id(module)]
        lines = [f"class {name}({self._names.nn()}.Module):", *_docstring(module), ""]
        lines += format_statements(
            [_method("__init__", _self_alone(), [_super_call(), *tree.statements])], "    "
        )
        for method in methods:
            lines += ["", *format_statements([method], "    ")]
        self._classes.append(lines)

    def _methods(self, module: GraphModule, tree: ModuleText) -> list[ast.stmt]:
        program = read_program(module.graph, self._names, tree)
        _check_parameters(program)
        check = check_program(module, self._names, tree)
        name = "_check_inputs"
        while check is not None and hasattr(module, name):
            name = f"_{name}"
        methods: list[ast.stmt] = []
        if check is not None:
            methods.append(_method(name, check.arguments, check.body))
            program.body.insert(0, guard_call(name, program.arguments))
        methods.append(_method("forward", program.arguments, program.body, program.returns))
        switches = _switches(module, tree)
        if switches:
            methods.append(_switching_method(switches))
        return methods


def _check_parameters(program: Program) -> None:
    arguments = program.arguments
    every = [*arguments.args, *arguments.kwonlyargs]
    for entry in every:
        if entry.arg.startswith("__") and not entry.arg.endswith("__"):
            raise Refusal(f"the parameter {entry.arg!r} would have another name inside a class. Rename it.")


@contextmanager
def _as_refusals() -> Generator[None]:
    """Let what the code generator does not accept be said by the export."""
    try:
        yield
    except FxplugError as error:
        raise Refusal(error.message) from error


def _method(
    name: str, arguments: ast.arguments, body: list[ast.stmt], returns: ast.expr | None = None
) -> ast.stmt:
    return ast.FunctionDef(name, arguments, body, [], returns)


def _self_alone() -> ast.arguments:
    return ast.arguments([], [ast.arg("self")], None, [], [], None, [])


def _super_call() -> ast.stmt:
    return ast.Expr(ast.Call(ast.Attribute(ast.Call(FixedName("super"), [], []), "__init__"), [], []))


def _switches(module: GraphModule, tree: ModuleText) -> list[ast.stmt]:
    """Return what puts the modules into their modes that the classes of the program do not let torch switch."""
    found: list[ast.stmt] = []
    for path, flags in module.graph.training_overrides.items():
        if module_at(module, path) is None:
            continue
        value: ast.expr = ast.Constant(flags[0])
        if flags[0] is not flags[1]:
            value = FixedName("mode") if flags[0] else ast.UnaryOp(ast.Not(), FixedName("mode"))
        owner = tree.path(tuple(path.split("."))) if path else FixedName("self")
        found.append(ast.Assign([ast.Attribute(owner, "training")], value))
    return found


def _switching_method(switches: list[ast.stmt]) -> ast.stmt:
    arguments = ast.arguments(
        [], [ast.arg("self"), ast.arg("mode")], None, [], [], None, [ast.Constant(True)]
    )
    plain = ast.Expr(
        ast.Call(ast.Attribute(ast.Call(FixedName("super"), [], []), "train"), [FixedName("mode")], [])
    )
    return _method("train", arguments, [plain, *switches, ast.Return(FixedName("self"))])


def _docstring(module: GraphModule) -> list[str]:
    nodes = len(list(module.graph.nodes))
    summary = f"A captured program of {nodes} nodes."
    guards = [printable(str(guard.text)) for guard in module.guards]
    unchecked = guards if module.guard_set is not None and module.guard_set.on_failure == "ignore" else []
    lines = [summary]
    if unchecked:
        lines += ["", "It is right only where these hold, which nobody checks:", ""]
        for text in unchecked:
            lines += textwrap.wrap(f"- {text}", _WIDTH - 8, subsequent_indent="  ")
    text = [_in_docstring(line) for line in lines]
    if len(text) == 1:
        return [f'    """{text[0]}"""']
    return [f'    """{text[0]}', *(f"    {line}".rstrip() for line in text[1:]), '    """']


def _in_docstring(text: str) -> str:
    """Return text that ends no string and escapes nothing."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _exports(class_name: str) -> str:
    """Return the names of a package in the order that sorters of imports have: constants, classes, the rest."""
    kind = 0 if class_name.isupper() and len(class_name) > 1 else 1 if class_name[0].isupper() else 2
    names = sorted([(kind, class_name), (2, "load")])
    return ", ".join(f'"{name}"' for _, name in names)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH))
