"""What a program keeps outside of its modules: in globals, closures, classes, functions, objects and iterators.

Nothing tells when a program reads or writes a global. So what the functions of a program find by name is noted when
they are entered, and compared with what is there when the program has ended.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from operator import is_
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.capture.attributes import attribute_of, can_be_asked
from fxplug.capture.containers import (
    KINDS,
    OWN_TABLES,
    PLAIN,
    copy_of,
    fill,
    is_array,
    is_container,
    is_object,
    is_unchanged,
    parts_of,
)
from fxplug.capture.imports import imported_by
from fxplug.capture.iterators import goes_on, position_of
from fxplug.capture.reached import function_behind
from fxplug.capture.sources import belongs_to_program, is_installed
from fxplug.capture.writes import is_read, only_adds_to, place_of_write, with_inner, writes_of
from fxplug.semantics.internals import DYNAMO_INLINE, modules_below, own_tables

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from contextvars import Context

    from fxplug.capture.writes import Writes
    from fxplug.ir import SourceLine

__all__ = ["ABSENT", "Known", "OutsideChange", "OutsideState", "Step"]


class _Absent:
    def __repr__(self) -> str:
        return "<nothing>"


ABSENT: Any = _Absent()
"""Stands for what a name has that is not there."""
_MOST = 1000
"""Containers in containers are looked at in those that have at most so many elements."""
_LIMIT = 20_000
"""So many containers and objects are noted at most."""
_SET_BY_TRACES = frozenset({DYNAMO_INLINE, "__signature__", "__wrapped__"})
"""What a function whose code is exchanged has among its attributes meanwhile."""
_PASSIVE = PLAIN | {FunctionType, classmethod, property, staticmethod, type}
"""Classes of what most classes hold, and which is not looked into."""
_ScriptModule: type = torch.jit.ScriptModule
_CLOSED = (nn.Module, type, FunctionType, ModuleType)
_WITH_ATTRIBUTES = frozenset({FunctionType, classmethod, staticmethod})
_DEFAULTS = frozenset({"__defaults__", "__kwdefaults__"})
_HOLDING = (MethodType, BuiltinMethodType, MethodWrapperType, partial)
"""What is made of an object, or of others, that it calls."""


def _held_by(value: Any) -> tuple[Any, ...]:
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    return () if isinstance(value.__self__, _CLOSED) else (value.__self__,)


class Known(NamedTuple):
    """What something is called."""

    kind: str
    """``"global"``, ``"variable"``, ``"attribute"`` or ``"default"``."""
    owner: str
    """The module, function, class or object that has it."""
    name: str

    def __str__(self) -> str:
        words = {
            "attribute": f"the attribute {self.name!r} of {self.owner}",
            "default": f"the default of the parameter {self.name!r} of {self.owner}",
            "global": f"the global {self.name!r} of the module {self.owner}",
            "variable": f"the variable {self.name!r}, which {self.owner} closes over",
        }
        return words[self.kind]


class Step(NamedTuple):
    """A place in which something else stands than before."""

    name: str
    """Of the attribute or variable."""
    kind: str
    """Of the name (see `Known`)."""
    former: Any
    """What was there; for contents a list of it."""
    found: Any
    """What the program has left there."""
    contents: bool
    """Whether it is what a container holds that has changed."""
    holder: type | None = None
    """The class of the object that has the attribute, where it is in an object that a module holds."""


class OutsideChange(NamedTuple):
    """Something that the program has changed."""

    known: Known
    how: str
    """``"assigned"``, ``"contents"`` or ``"iterator"``."""
    former: Any
    """What was there; for contents a list of it."""
    found: Any
    """What the program has left there."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The places where something else stands now."""
        return (
            Step(self.known.name, self.known.kind, self.former, self.found, contents=self.how == "contents"),
        )


class OutsideState:
    """Remembers what the functions of a program find outside of its modules, to put it back.

    What the modules below the root hold is known to `ModuleStates`; what others hold that a function finds is noted
    here.

    Functions and classes of installed libraries are not looked at: what they keep are caches. Objects of theirs that a
    function of the program finds are state like others: a scheduler counts its steps.

    Args:
        below: The ids of the modules below the root.
    """

    def __init__(self, below: Container[int] = ()) -> None:
        self._below = below
        self._root: nn.Module | None = None
        """The module that is traced, until it is known which context variables those below it hold."""
        self.classes: set[type] = set()
        """Those that were looked at."""
        self._codes: list[CodeType] = []
        self._bindings: dict[tuple[int, str], tuple[Known, Any, Any]] = {}
        self._contents: dict[int, tuple[Known, Any, list[Any]]] = {}
        self._objects: list[tuple[Any, type]] = []
        """Each object that was noted, and its class."""
        self._iterators: dict[int, tuple[Known, Any, Any]] = {}
        self._found: list[Any] = []
        """The tensors, and the modules that the root does not have, which functions find by their names, and what is
        bound by a partial."""
        self._tables: dict[int, tuple[str, Any, dict[str, Any]]] = {}
        self._put_back: list[tuple[Any, Any, Any, Any]] = []
        self._variables: dict[int, tuple[Known, ContextVar[Any], Any]] = {}
        self.context: Context | None = None
        """Where the program runs: what it gives to context variables stays there."""
        self.left_in_context: list[tuple[ContextVar[Any], Any]] = []
        """The context variables that the program has given something else, and what."""

    # -- taking note

    def note_function(self, function: FunctionType, code: CodeType, names: frozenset[str]) -> None:
        """Take note of what a function finds by its names.

        Args:
            function: The function.
            code: Its own, if it is lent another one.
            names: Those of globals and attributes that it, or a function in it, uses.
        """
        if not self.note_code(code):
            return
        if "environ" in names:
            self._add(Known("global", "os", "environ"), os.environ)
        if "set" in names:
            self._note_variables_held()
        writes = writes_of(code)
        namespace = function.__globals__
        owner = str(namespace.get("__name__"))
        for name in writes.variables:
            self._bind(Known("global", owner, name), namespace)
        for name in namespace.keys() & names:
            value = namespace.get(name)  # Another trace may take its stand-in away meanwhile.
            if type(value) in PLAIN or not can_be_asked(value):
                continue
            if isinstance(value, ModuleType):
                self._note_module_of_python(value, names, writes.attributes)
            else:
                self._note(Known("global", owner, name), value, writes.attributes)
                self._note_own_defaults(value, names)
        self._note_imports(code, namespace.get("__package__"), names, writes.attributes)
        if function.__closure__:
            self._note_closure(function, code, writes, names)
        if function.__defaults__ or function.__kwdefaults__:
            self._note_defaults(function, code)
        self._note_attributes_of(function, writes.attributes)

    def note_code(self, code: CodeType) -> bool:
        """Take note of code that may run; return whether it is of the program, and not of a library."""
        if is_installed(code.co_filename):
            return False
        self._codes.append(code)
        return True

    def _note_imports(
        self, code: CodeType, package: Any, names: frozenset[str], assigned: frozenset[str]
    ) -> None:
        for path, name, value in imported_by(code, package):
            if isinstance(value, ModuleType):
                self._note_module_of_python(value, names, assigned)
            elif type(value) not in PLAIN and not _is_installed_module(sys.modules[path]):
                self._note(Known("global", path, name), value, assigned)

    def _note_variables_held(self) -> None:
        """Take note of the context variables that modules hold."""
        root, self._root = self._root, None
        for _, module in () if root is None else modules_below(root):
            for name, value in vars(module).items():
                if type(value) is ContextVar:
                    self._add(Known("attribute", type(module).__qualname__, name), value)

    def _note_closure(
        self, function: FunctionType, code: CodeType, writes: Writes, names: frozenset[str]
    ) -> None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            if belongs_to_program(name, cell):
                continue
            known = Known("variable", code.co_name, name)
            if name in writes.cells:
                self._bind(known, cell)
            try:
                value = cell.cell_contents
            except ValueError:  # It has no value yet.
                continue
            # What a function only adds to is for whoever looks at it afterwards.
            if isinstance(value, ModuleType):
                self._note_module_of_python(value, names, _read_again(code, writes.attributes))
            elif not (isinstance(value, KINDS) and only_adds_to(code, name)) and not _is_namespace(value):
                self._note(known, value, writes.attributes)
                self._note_own_defaults(value, names)

    def _note_own_defaults(self, value: Any, names: frozenset[str]) -> None:
        """Take note of the defaults of a function that a program finds, if it names what holds them."""
        if names.isdisjoint(_DEFAULTS) or not isinstance(value, FunctionType):
            return
        for name in _DEFAULTS:
            known = Known("attribute", f"the function {value.__qualname__}", name)
            self._bind(known, value)
            self._add(known, getattr(value, name))

    def _note_defaults(self, function: FunctionType, code: CodeType) -> None:
        defaults = function.__defaults__ or ()
        first = code.co_argcount - len(defaults)
        named = dict(zip(code.co_varnames[first : code.co_argcount], defaults, strict=False))
        for name, value in {**named, **(function.__kwdefaults__ or {})}.items():
            self._note(Known("default", code.co_name, name), value, frozenset())

    def note_class(self, kind: type) -> None:
        """Take note of what a class of a program holds, and those that it is derived from."""
        if kind in self.classes:
            return
        self.classes.add(kind)
        if type(kind) is not type:
            self.note_class(type(kind))
        for base in kind.__mro__:
            if base is nn.Module or base is object:
                break
            if _is_own_class(base):
                self._note_table(base.__qualname__, base)

    def note_root(self, root: Any) -> None:
        """Take note of what is traced: of a module the class alone, of what has a method the object."""
        while isinstance(root, partial):
            self._found += [*root.args, *root.keywords.values()]
            for value in (*root.args, *root.keywords.values()):
                self._add(Known("default", "the partial that is traced", "args"), value)
            root = root.func
        if isinstance(root, nn.Module):
            self.note_class(type(root))
            self._root = root
        else:
            self._note_receiver(root.__self__ if isinstance(root, MethodType) else root)

    def _note_receiver(self, receiver: Any) -> None:
        if isinstance(receiver, type):
            self.note_class(receiver)
        elif isinstance(receiver, nn.Module):
            self.note_class(type(receiver))
            self._note_table(type(receiver).__qualname__, vars(receiver))
        elif is_object(receiver):
            self._add(Known("attribute", type(receiver).__qualname__, "self"), receiver)

    def _note_module_of_python(
        self, module: ModuleType, names: frozenset[str], assigned: frozenset[str]
    ) -> None:
        if _is_installed_module(module):
            return
        held = vars(module)
        for name in assigned & held.keys():
            self._bind(Known("global", module.__name__, name), held)
        for name in held.keys() & names:
            if not isinstance(held.get(name), ModuleType):
                self._note(Known("global", module.__name__, name), held.get(name), assigned)

    def _note(self, known: Known, value: Any, assigned: frozenset[str]) -> None:
        """Take note of something that a function finds.

        Args:
            known: What it is called.
            value: What it is.
            assigned: The attributes that the function assigns, of whatever object.
        """
        if not can_be_asked(value):
            return
        if isinstance(value, type):
            self.note_class(value)
        elif isinstance(value, FunctionType):
            self._note_attributes_of(value, assigned)
            self._note_registry(known, value)
        elif isinstance(value, MethodType):
            self._note(known, value.__self__, assigned)
            self._note(known, value.__func__, assigned)
        elif isinstance(value, torch.Tensor):
            self._found.append(value)
            if assigned and type(value) in PLAIN:
                self._note_table(f"the tensor {known.name}", vars(value))
        elif isinstance(value, nn.Module):
            if id(value) not in self._below:
                self._found.append(value)
                self._note_modules_in(known, value, assigned)
        else:
            self._add(known, value)
            for part in _behind(value):
                self._note(known, part, assigned)

    def _note_registry(self, known: Known, function: FunctionType) -> None:
        """Take note of the functions among which one made by `functools.singledispatch` chooses."""
        register = vars(function).get("register")
        if not isinstance(register, FunctionType) or "registry" not in vars(function):
            return
        for name, cell in zip(register.__code__.co_freevars, register.__closure__ or (), strict=True):
            if name == "registry":
                self._add(known, cell.cell_contents)

    def _note_attributes_of(self, function: FunctionType, assigned: frozenset[str]) -> None:
        held = vars(function)
        if (held or assigned) and not is_installed(function.__code__.co_filename):
            self._note_table(f"the function {function.__qualname__}", held)

    def _note_table(self, owner: str, holder: Any) -> None:
        """Take note of all attributes of a class, or of what has its attributes in a dict."""
        if id(holder) in self._tables:
            return
        before = dict(_names_of(holder))
        self._tables[id(holder)] = (owner, holder, before)
        for name, value in before.items():
            if type(value) not in _PASSIVE and not _is_ignored(name):
                self._add(Known("attribute", owner, name), value)
            elif type(value) in _WITH_ATTRIBUTES and isinstance(function_behind(value), FunctionType):
                self._note_attributes_of(function_behind(value), frozenset())

    def _note_modules_in(self, known: Known, module: nn.Module, assigned: frozenset[str]) -> None:
        """Take note of what a function may change in a module that the root does not have, and in those below.

        Other threads may change anything else in it meanwhile.
        """
        for path, part in modules_below(module):
            if id(part) in self._below or isinstance(part, _ScriptModule):
                continue
            owner = f"{known.name}.{path}" if path else known.name
            plain: dict[str, Any] = vars(part)
            for name in assigned:
                for table in (plain, *own_tables(part)):
                    if table is plain or name in table:
                        self._bind(Known("attribute", owner, name), table)
            for name, value in plain.items():
                if is_container(value) and name not in OWN_TABLES:
                    self._add(Known("attribute", owner, name), value)

    def _bind(self, known: Known, holder: Any) -> None:
        key = (id(holder), known.name)
        if key not in self._bindings:
            self._bindings[key] = (known, holder, _read(holder, known.name))

    def _add(self, known: Known, value: Any) -> None:
        """Take note of what containers, objects and iterators hold."""
        pending = [(known, value)]
        while pending and len(self._contents) < _LIMIT:
            known, part = pending.pop()
            kind = type(part)
            if kind in PLAIN or id(part) in self._contents or isinstance(part, _CLOSED):
                continue
            if isinstance(part, _HOLDING):
                pending.extend((known, inner) for inner in _held_by(part))
            elif is_container(part):
                pending.extend((known, inner) for inner in self._add_container(known, part))
            elif is_object(part):
                before = copy_of(part)
                self._contents[id(part)] = (known, part, before)
                self._objects.append((part, kind))
                self.note_class(kind)
                owner = kind.__qualname__
                pending.extend((Known("attribute", owner, name), inner) for name, inner in before)
            else:
                self._add_other(known, part)

    def _add_container(self, known: Known, container: Any) -> Iterable[Any]:
        """Take note of what a container holds, and return what has to be looked at in it."""
        kind, before = type(container), copy_of(container)
        self._contents[id(container)] = (known, container, before)
        if kind.__module__ != "builtins" and _is_own_class(kind):
            self._note_table(kind.__qualname__, attribute_of(container, "__dict__", {}))
        return parts_of(container, before) if len(before) <= _MOST else ()

    def _add_other(self, known: Known, value: Any) -> None:
        """Take note of an error, a context variable or an iterator."""
        if isinstance(value, BaseException):
            owner = type(value).__qualname__
            self._bind(Known("attribute", owner, "args"), value)
            self._note_table(owner, vars(value))
        elif isinstance(value, ContextVar):
            variable = cast("ContextVar[Any]", value)
            self._variables.setdefault(id(value), (known, variable, variable.get(ABSENT)))
        elif goes_on(value) and (position := position_of(value)) is not None:
            self._iterators.setdefault(id(value), (known, value, position))

    def held(self) -> Iterator[Any]:
        """Yield what functions find, such as tensors, and what containers, objects and classes held when noted."""
        yield from self._found
        for _, container, before in self._contents.values():
            if len(before) <= _MOST:
                yield from parts_of(container, before)
        for _, _, before in self._tables.values():
            yield from before.values()

    # -- putting back

    def restore(self) -> list[OutsideChange]:
        """Put everything back but iterators, which cannot be, and return what had been changed."""
        changes: list[OutsideChange] = []
        for known, holder, before in self._bindings.values():
            found = _read(holder, known.name)
            if found is not before:
                changes.append(OutsideChange(known, "assigned", before, found))
                self._put_back.append((holder, known.name, before, found))
                _write(holder, known.name, before)
        for owner, holder, before in self._tables.values():
            for name in _differing(_names_of(holder), before):
                former, found = before.get(name, ABSENT), _read(holder, name)
                changes.append(OutsideChange(Known("attribute", owner, name), "assigned", former, found))
                self._put_back.append((holder, name, former, found))
                _write(holder, name, former)
        for known, value, before in self._contents.values():
            if not is_unchanged(value, before):
                found = copy_of(value)
                changes.extend(_changes_in(known, value, before, found))
                self._put_back.append((value, None, before, found))
                fill(value, before)
        changes.extend(self._class_changes())
        for known, value, before in self._iterators.values():
            if position_of(value) != before:
                changes.append(OutsideChange(known, "iterator", None, value))
        changes.extend(self._context_changes())
        self._root = None
        self.context = None  # Neither it nor a variable can be copied, as a tracer can.
        held = (self._bindings, self._tables, self._contents, self._iterators, self._variables)
        for table in (*held, self._objects, self.classes, self._found):
            table.clear()
        return changes

    def _class_changes(self) -> Iterable[OutsideChange]:
        """Give objects their classes back, and yield which had another one."""
        for value, kind in self._objects:
            found = type(value)
            if found is not kind:
                known = Known("attribute", kind.__qualname__, "__class__")
                self._put_back.append((value, known.name, kind, found))
                _write(value, known.name, kind)
                yield OutsideChange(known, "assigned", kind, found)

    def _context_changes(self) -> Iterable[OutsideChange]:
        """Yield what the program has given to context variables; outside of its context they are as they were."""
        for known, variable, before in self._variables.values():
            found = ABSENT if self.context is None else self.context.get(variable, ABSENT)
            if found is not before and found is not ABSENT:
                self.left_in_context.append((variable, found))
                yield OutsideChange(known, "assigned", before, found)

    def arrays(self) -> list[Any]:
        """Return the arrays of NumPy that functions find, until they are put back."""
        return [value for _, value, _ in self._contents.values() if is_array(value)]

    def changed(self) -> set[int]:
        """Return the ids of the containers and objects that had been changed when all was put back."""
        return {id(holder) for holder, name, _, _ in self._put_back if name is None}

    def exchange(self, *, as_left: bool) -> None:
        """Put there what the program had left there, or again what was there before.

        Args:
            as_left: Whether it is what the program had left.
        """
        for holder, name, before, found in self._put_back:
            value = found if as_left else before
            if name is None:
                fill(holder, value)
            else:
                _write(holder, name, value)

    def codes(self) -> list[CodeType]:
        """Return the functions that were looked at, with those inside of them."""
        return [part for code in self._codes for part in with_inner(code)]

    def place_of(self, known: Known) -> SourceLine | None:
        """Return the line that changes something, None where it is not found."""
        return place_of_write(self.codes(), known.name, known.kind)


def _read_again(code: CodeType, assigned: frozenset[str]) -> frozenset[str]:
    """Return those attributes that a function assigns which it reads, too."""
    codes = list(with_inner(code))
    return frozenset(name for name in assigned if is_read(codes, name, "attribute", contents=False))


def _changes_in(known: Known, value: Any, before: list[Any], found: list[Any]) -> Iterable[OutsideChange]:
    if not is_object(value):
        return [OutsideChange(known, "contents", before, found)]
    former: dict[str, Any] = dict(before)
    current: dict[str, Any] = dict(found)
    return [
        OutsideChange(
            Known("attribute", type(value).__qualname__, name),
            "assigned",
            former.get(name, ABSENT),
            current.get(name, ABSENT),
        )
        for name in {**former, **current}
        if former.get(name, ABSENT) is not current.get(name, ABSENT)
    ]


def _read(holder: Any, name: str) -> Any:
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # It has no value yet.
            return ABSENT
    return _names_of(holder).get(name, ABSENT) if isinstance(holder, (dict, type)) else getattr(holder, name)


def _names_of(holder: Any) -> Mapping[str, Any]:
    return vars(holder) if isinstance(holder, type) else cast("dict[str, Any]", holder)


def _is_ignored(name: str) -> bool:
    """Return whether an attribute is one that Python or a trace sets."""
    return name.startswith(("__", "_abc_")) or name in _SET_BY_TRACES or name in OWN_TABLES


def _differing(found: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the names that have something else now, by identity: values may define any == of their own."""
    if (
        len(found) == len(before)
        and all(map(is_, found.values(), before.values()))
        and all(map(is_, found, before))
    ):
        return []
    names = dict.fromkeys((*before, *found))
    return [
        name
        for name in names
        if not _is_ignored(name) and found.get(name, ABSENT) is not before.get(name, ABSENT)
    ]


def _write(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, CellType):
        if value is ABSENT:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, type):
        if value is not ABSENT:
            type.__setattr__(holder, name, value)
        elif name in vars(
            holder
        ):  # It is put back after each run of a check, too, and a run may not have set it.
            type.__delattr__(holder, name)
    elif not isinstance(holder, dict):
        setattr(holder, name, value)
    elif value is ABSENT:
        holder.pop(name, None)
    else:
        holder[name] = value


def _is_namespace(value: Any) -> bool:
    """Return whether a value is the globals of a module, in which a trace puts things of its own."""
    return isinstance(value, dict) and "__builtins__" in value


def _behind(value: Any) -> Iterator[Any]:
    """Yield what is changed through a variable of a context, or a view of bytes."""
    if isinstance(value, memoryview):
        yield value.obj
    elif isinstance(value, ContextVar):
        with suppress(LookupError):  # It has no value here.
            yield cast("ContextVar[Any]", value).get()


_own: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_own_class(kind: type) -> bool:
    """Return whether a class is one of the program, and of no installed library."""
    known = _own.get(kind)
    if known is None:
        top = str(kind.__module__).partition(".")[0]
        module = sys.modules.get(kind.__module__)
        is_foreign = top in sys.stdlib_module_names and top != "__main__"
        known = _own[kind] = not is_foreign and not (module is not None and _is_installed_module(module))
    return known


def _is_installed_module(module: ModuleType) -> bool:
    name = module.__name__
    if name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return name in sys.builtin_module_names or (file is not None and is_installed(file))
