"""What a module holds as the statements that make it again."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.codegen.formatting import FixedName, dotted
from fxplug.execute import GraphModule
from fxplug.execute.folder import given_state
from fxplug.ir import is_plain_name
from fxplug.semantics.internals import buffers_of, has_gradient_hooks, modules_of, parameters_of, persists
from fxplug.storage.export.constructors import construct, own_attributes
from fxplug.storage.export.fused_layers import plain_layer
from fxplug.storage.export.names import Names, UnreachableError
from fxplug.storage.faults import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fxplug.storage.export.constructors import Construction

__all__ = ["RESTORE", "ModuleText", "held_tensors"]

RESTORE = "restore"
"""The function of the file that makes a module without its constructor."""

_STATE = frozenset(vars(nn.Module()))
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
_GRAPH_STATE = frozenset({"_graph", "_compiled", "_class_name", "_guards", "meta"})
_TENSORS = (
    frozenset({torch.Tensor, nn.Parameter, nn.Buffer})
    if hasattr(nn, "Buffer")
    else frozenset({torch.Tensor, nn.Parameter})
)
_LISTS = (nn.Sequential, nn.ModuleList)
_LONGEST_LITERAL = 8
_LITERALS = frozenset({torch.float32, torch.int64, torch.bool})

Path = tuple[str, ...]


def walk(
    module: nn.Module, path: Path = (), seen: set[int] | None = None
) -> Iterator[tuple[Path, nn.Module]]:
    """Yield every module with the path at which it is met first, in the order of ``named_modules``."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in modules_of(module).items():
        if child is not None:
            yield from walk(child, (*path, str.__str__(name)), seen)


def held_tensors(root: nn.Module) -> dict[str, torch.Tensor]:
    """Return every tensor that a module and those below it hold, by dotted path.

    Raises:
        Refusal: One is of a kind that a file of weights does not keep.
    """
    found: dict[str, torch.Tensor] = {}
    for path, module in walk(root):
        for name, tensor in _tensors_of(module).items():
            where = ".".join([*path, name])
            if type(tensor) not in _TENSORS:
                raise Refusal(
                    f"{where!r} is a {type(tensor).__name__}. Make it a plain tensor or a torch.nn.Parameter."
                )
            if has_gradient_hooks(tensor):
                raise Refusal(
                    f"{where!r} has hooks, which Python code cannot hold. Remove them before exporting."
                )
            found[where] = tensor
    return found


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    tables = (parameters_of(module), buffers_of(module), _attributes(module))
    return {
        str.__str__(name): value
        for table in tables
        for name, value in table.items()
        if isinstance(value, torch.Tensor)
    }


def _attributes(module: nn.Module) -> dict[str, Any]:
    own = _GRAPH_STATE if isinstance(module, GraphModule) else frozenset[str]()
    return {name: value for name, value in own_attributes(module).items() if name not in own}


def _is_numbered(module: nn.Module) -> bool:
    """Return whether the children of a module are numbered from 0 on, so that it can be a list."""
    children = modules_of(module)
    return bool(children) and list(children) == [str(number) for number in range(len(children))]


def _is_holder(module: nn.Module) -> bool:
    return type(module) is nn.Module


def _is_list(module: nn.Module) -> bool:
    return (
        (_is_holder(module) or type(module) in _LISTS)
        and _is_numbered(module)
        and None not in modules_of(module).values()
    )


def _is_attribute(name: str) -> bool:
    # Inside a class, Python reads names that begin with two underscores as others.
    return is_plain_name(name) and not (name.startswith("__") and not name.endswith("__"))


class ModuleText:
    """The statements that make what one graph module holds.

    Args:
        root: The graph module.
        names: Receives the imports.
        class_of: Returns the name of the class of a graph module below this one.
    """

    def __init__(self, root: nn.Module, names: Names, class_of: Callable[[GraphModule], str]) -> None:
        self._root = root
        self._names = names
        self._class_of = class_of
        self._seen: dict[int, Path] = {id(root): ()}
        self._references = Counter(
            id(child)
            for _, module in walk(root)
            for child in modules_of(module).values()
            if child is not None
        )
        self.statements: list[ast.stmt] = []
        """Those of ``__init__``."""
        self.restores = False
        """Whether they call the function ``restore``."""
        self._fill(root, ())
        self._tie()
        self._set_training()

    # -- paths

    def path(self, parts: list[str] | Path) -> ast.expr:
        """Return the expression that reads a path below the module."""
        found: ast.expr = FixedName("self")
        module: Any = self._root
        for part in parts:
            found = self._step(found, module, part)
            module = modules_of(module).get(part) if isinstance(module, nn.Module) else None
        return found

    def holds(self, parts: list[str]) -> bool:
        """Return whether a module holds what is at a path, so that reading it again gives the same."""
        return any(parts[-1] in table for table in self._tables(parts))

    def find(self, parts: list[str]) -> Any:
        """Return the module or tensor at a path, None where there is none."""
        return next((table[parts[-1]] for table in self._tables(parts) if parts[-1] in table), None)

    def _tables(self, parts: list[str]) -> tuple[Mapping[str, Any], ...]:
        """Return where the module that a path leads through keeps what it holds."""
        module: Any = self._root
        for part in parts[:-1]:
            module = modules_of(module).get(part) if isinstance(module, nn.Module) else None
        if not isinstance(module, nn.Module):
            return ()
        return parameters_of(module), buffers_of(module), modules_of(module), vars(module)

    def _step(self, found: ast.expr, module: Any, part: str) -> ast.expr:
        if (
            isinstance(module, nn.Module)
            and module is not self._root
            and _is_list(module)
            and part in modules_of(module)
        ):
            return ast.Subscript(found, ast.Constant(int(part)))
        if _is_attribute(part):
            return ast.Attribute(found, part)
        return ast.Call(self._names.builtin("getattr"), [found, ast.Constant(part)], [])

    def _put(self, path: Path, value: ast.expr, *, is_module: bool = False) -> None:
        """Add the statement that gives an attribute its value."""
        *parents, name = path
        owner, holder = self.path(parents), self._module_at(tuple(parents))
        if is_module and holder is not self._root and _is_list(holder):
            self._call(ast.Attribute(owner, "append"), value)
        elif _is_attribute(name):
            self.statements.append(ast.Assign([ast.Attribute(owner, name)], value))
        elif is_module:
            self._call(ast.Attribute(owner, "add_module"), ast.Constant(name), value)
        else:
            self._call(FixedName("setattr"), owner, ast.Constant(name), value)

    def _call(self, function: ast.expr, *args: ast.expr, **kwargs: ast.expr) -> None:
        keywords = [ast.keyword(name, value) for name, value in kwargs.items()]
        self.statements.append(ast.Expr(ast.Call(function, list(args), keywords)))

    def _module_at(self, path: Path) -> nn.Module:
        module = self._root
        for part in path:
            module = modules_of(module)[part]
        return module

    # -- modules

    def _fill(self, module: nn.Module, path: Path) -> None:
        """Write everything that a module holds."""
        _refuse_hooks(module, path)
        self._fill_tensors(module, path)
        for name, value in _attributes(module).items():
            if not isinstance(value, torch.Tensor) and (
                _is_holder(module) or isinstance(module, GraphModule)
            ):
                self._put((*path, name), self._plain(value, path, name))
        for name, child in modules_of(module).items():
            if child is None:
                self._call(
                    ast.Attribute(self.path(path), "register_module"), ast.Constant(name), ast.Constant(None)
                )
            elif self._seen.get(id(child)) != (*path, name):
                self._add(child, (*path, str.__str__(name)))
            else:
                self._fill(child, (*path, name))  # Made together with the list that holds it.

    def _add(self, module: nn.Module, path: Path) -> None:
        known = self._seen.get(id(module))
        if known is not None:
            self._put(path, self.path(known), is_module=True)
            return
        expression = self._expression(module, path)
        if expression is not None:
            self._put(path, expression, is_module=True)
            self._see(module, path)
            self._add_extras(module, path)
            return
        self._seen[id(module)] = path
        self._put(path, self._empty(module, path), is_module=True)
        self._fill(module, path)

    def _see(self, module: nn.Module, path: Path) -> None:
        """Note where modules are that were made together with another one."""
        for inner, part in walk(module):
            known = self._seen.get(id(part))
            if known is None:
                self._seen[id(part)] = (*path, *inner)
            elif isinstance(module, GraphModule):
                self._put((*path, *inner), self.path(known), is_module=True)

    def _add_extras(self, module: nn.Module, path: Path) -> None:
        made = plain_layer(module)
        construction = None if isinstance(module, GraphModule) else construct(made)
        if construction is None:
            for name, child in modules_of(module).items() if not isinstance(module, GraphModule) else ():
                self._add_extras(child, (*path, name))
            return
        for name, value in construction.extra(made).items():
            if isinstance(value, torch.Tensor):
                self._put((*path, name), self._tensor(value))
            else:
                self._put((*path, name), self._plain(value, path, name))

    def _expression(self, module: nn.Module, path: Path) -> ast.expr | None:
        """Return an expression that makes a module with everything below it, None where there is none."""
        if isinstance(module, GraphModule):
            return ast.Call(FixedName(self._class_of(module)), [], [])
        for inner, part in walk(module):
            _refuse_hooks(part, (*path, *inner))
            if inner and self._references[id(part)] > 1:
                return None
        made = plain_layer(module)
        construction = construct(made)
        if construction is not None:
            return self._construction(construction, made, path)
        if _is_list(module) and not _tensors_of(module) and not own_attributes(module):
            children = modules_of(module)
            parts = [self._expression(child, (*path, name)) for name, child in children.items()]
            if None not in parts:
                return self._list(module, [part for part in parts if part is not None])
        return None

    def _construction(self, construction: Construction, module: nn.Module, path: Path) -> ast.expr | None:
        if any(len(path) > 0 and isinstance(value, nn.Module) for value in construction.args):
            return None
        args = [self._plain(value, path, "") for value in construction.args]
        keywords = [
            ast.keyword(name, self._plain(value, path, name)) for name, value in construction.kwargs.items()
        ]
        return ast.Call(dotted(f"{self._names.nn()}.{type(module).__name__}"), args, keywords)

    def _list(self, module: nn.Module, parts: list[ast.expr]) -> ast.expr:
        if isinstance(module, nn.Sequential):
            return ast.Call(dotted(f"{self._names.nn()}.Sequential"), parts, [])
        return ast.Call(dotted(f"{self._names.nn()}.ModuleList"), [ast.List(parts)], [])

    def _empty(self, module: nn.Module, path: Path) -> ast.expr:
        """Return an expression for a module that holds nothing yet."""
        prefix = self._names.nn()
        if _is_holder(module):
            return self._empty_holder(module, path)
        if type(module) in {nn.Sequential, nn.ModuleList, nn.ModuleDict} and not own_attributes(module):
            return ast.Call(dotted(f"{prefix}.{type(module).__name__}"), [], [])
        try:
            kind = self._names.reference(type(module))
        except UnreachableError as error:
            raise Refusal(
                f"the class of {_described(path)} {error}. Use a class that an import finds."
            ) from None
        state = given_state(module)
        _check_state(state, path)
        attributes = {
            name: value
            for name, value in state.items()
            if name not in _STATE and not isinstance(value, torch.Tensor)
        }
        self.restores = True
        values = ast.Dict(
            [ast.Constant(name) for name in attributes],
            [self._plain(value, path, name) for name, value in attributes.items()],
        )
        return ast.Call(FixedName(RESTORE), [kind, values], [])

    def _empty_holder(self, module: nn.Module, path: Path) -> ast.expr:
        prefix, children = self._names.nn(), modules_of(module)
        maker = ast.Call(dotted(f"{prefix}.Module"), [], [])
        if not _is_list(module):
            return maker
        alone = all(
            _is_holder(child) and not _is_list(child) and self._is_new(child) for child in children.values()
        )
        if not alone or len({id(child) for child in children.values()}) < len(children):
            return ast.Call(dotted(f"{prefix}.ModuleList"), [], [])
        for name, child in children.items():
            self._seen[id(child)] = (*path, name)
        count = ast.Call(FixedName("range"), [ast.Constant(len(children))], [])
        loop = ast.comprehension(FixedName("_"), count, [], 0)
        return ast.Call(dotted(f"{prefix}.ModuleList"), [ast.GeneratorExp(maker, [loop])], [])

    def _is_new(self, module: nn.Module) -> bool:
        return id(module) not in self._seen

    # -- what is no module

    def _fill_tensors(self, module: nn.Module, path: Path) -> None:
        owner = self.path(path)
        for name, parameter in parameters_of(module).items():
            if parameter is None:
                self._call(ast.Attribute(owner, "register_parameter"), ast.Constant(name), ast.Constant(None))
            else:
                self._put((*path, name), self._parameter(parameter))
        for name, buffer in buffers_of(module).items():
            value = ast.Constant(None) if buffer is None else self._tensor(buffer)
            more = {} if persists(module, name) else {"persistent": ast.Constant(False)}
            self._call(ast.Attribute(owner, "register_buffer"), ast.Constant(name), value, **more)
        for name, value in _attributes(module).items():
            if isinstance(value, torch.Tensor):
                self._put((*path, name), self._tensor(value))

    def _parameter(self, parameter: torch.Tensor) -> ast.expr:
        keywords = [] if parameter.requires_grad else [ast.keyword("requires_grad", ast.Constant(False))]
        return ast.Call(dotted(f"{self._names.nn()}.Parameter"), [self._empty_tensor(parameter)], keywords)

    def _empty_tensor(self, tensor: torch.Tensor) -> ast.expr:
        sizes: list[ast.expr] = [ast.Constant(size) for size in tensor.shape] or [ast.Tuple([])]
        keywords: list[ast.keyword] = []
        if tensor.dtype is not torch.float32:
            keywords.append(ast.keyword("dtype", self._names.value(tensor.dtype)))
        return ast.Call(dotted(f"{self._names.torch()}.empty"), sizes, keywords)

    def _tensor(self, tensor: torch.Tensor) -> ast.expr:
        """Return an expression for a tensor: with its values where they are few, else with its sizes alone."""
        if (
            tensor.is_meta
            or tensor.numel() > _LONGEST_LITERAL
            or tensor.dtype not in _LITERALS
            or tensor.requires_grad
        ):
            return self._empty_tensor(tensor)
        values = tensor.detach().cpu()
        if 0 in tensor.shape or not bool(torch.isfinite(values).all()):
            return self._empty_tensor(tensor)
        return ast.Call(
            dotted(f"{self._names.torch()}.tensor"), [self._names.value(_shortened(values.tolist()))], []
        )

    def _plain(self, value: Any, path: Path, name: str) -> ast.expr:
        try:
            return self._names.value(value)
        except UnreachableError as error:
            raise Refusal(
                f"{_described(path)} has the attribute {name!r}, which {error}. Use plain values, or what an import "
                "finds."
            ) from None

    # -- what several share, and how it is set

    def _tie(self) -> None:
        first: dict[int, Path] = {}
        for path, module in walk(self._root):
            for table in (parameters_of(module), buffers_of(module), _attributes(module)):
                for name, tensor in table.items():
                    if not isinstance(tensor, torch.Tensor):
                        continue
                    where = (*path, name)
                    known = first.setdefault(id(tensor), where)
                    if known != where and not self._within_one_class(known, where):
                        self._put(where, self.path(known))

    def _within_one_class(self, one: Path, other: Path) -> bool:
        """Return whether two paths lead into one graph module below, which ties them itself."""
        module: Any = self._root
        for part, same in zip(one, other, strict=False):
            module = modules_of(module).get(part) if part == same else None
            if module is None:
                return False
            if isinstance(module, GraphModule):
                return True
        return False

    def _set_training(self) -> None:
        self._set_training_below(self._root, (), state=True, seen=set())

    def _set_training_below(self, module: nn.Module, path: Path, *, state: bool, seen: set[int]) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        # What only holds others is never run, and what was made to hold them never had a mode.
        flags = Counter(part.training for _, part in walk(module) if not _is_holder(part))
        if flags and (flags.keys() != {state}):
            usual = flags.most_common(1)[0][0] if _is_holder(module) or not path else module.training
            if usual is not state:
                self._call(ast.Attribute(self.path(path), "train" if usual else "eval"))
                state = usual
            if module.training is not state and not _is_holder(module):
                self._put((*path, "training"), ast.Constant(module.training))
        if len(flags) > 1:
            for name, child in modules_of(module).items():
                if child is not None:
                    self._set_training_below(child, (*path, name), state=state, seen=seen)


def _shortened(values: Any) -> Any:
    """Return numbers of single precision with the fewest digits that give them again."""
    if isinstance(values, list):
        return [_shortened(value) for value in values]
    if type(values) is not float:
        return values
    exact = torch.tensor(values)
    return next(
        short
        for digits in range(6, 18)
        if torch.equal(torch.tensor(short := float(f"{values:.{digits}g}")), exact)
    )


def _refuse_hooks(module: nn.Module, path: Path) -> None:
    for name in _STATE - _TABLES - {"_is_full_backward_hook"}:
        if vars(module).get(name):
            raise Refusal(
                f"{_described(path)} has hooks ({name}), which no file can hold. Remove them first."
            )


def _check_state(state: dict[str, Any], path: Path) -> None:
    for name, value in state.items():
        if isinstance(value, nn.Module):
            raise Refusal(
                f"{_described(path)} has the module {name!r} as a plain attribute. Register it as a submodule."
            )


def _described(path: Path) -> str:
    return f"submodule {'.'.join(path)!r}" if path else "the module itself"
