"""Functions that do something else for a while: their code is exchanged, the function object stays the same.

Replacing ``nn.Module.__call__`` by another function takes 0.1 ms, because Python updates the slots of all its
subclasses, and everybody who compares the function or kept a reference to it sees something foreign, or goes past it.
Exchanging the code of the function takes a thousandth of that and reaches all callers, wherever they found it.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import threading
import weakref
from contextlib import contextmanager
from operator import is_
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.semantics.internals import DYNAMO_INLINE, skip_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Mapping, Sequence

__all__ = [
    "NamespacePatch",
    "Patch",
    "PatchGroup",
    "Patches",
    "SlotPatch",
    "Trampoline",
    "patch_for",
    "with_code",
]

_ORIGINAL = "<original>"
_BENEATH = "<beneath>"
_REFERENCE = "<reference>"
_ABSENT: Any = object()


class Patch(Protocol):
    """Something that can be put in place, and taken out again."""

    def install(self) -> None:
        """Put it in place."""
        ...

    def remove(self) -> None:
        """Undo what `install` did, unless somebody else has changed the same since."""
        ...


class Patches:
    """What is installed, each patch for as long as somebody holds it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while anything is installed or removed; by others who need several things installed at once."""
        self._installed: dict[Hashable, tuple[Patch, set[object]]] = {}
        self._held: dict[object, list[Hashable]] = {}

    def hold(self, holder: object, key: Hashable, make: Callable[[], Patch]) -> None:
        """Install a patch, if it is not yet, and keep it installed until `holder` releases what it holds.

        Args:
            holder: Who needs it.
            key: The same for the same patch.
            make: Makes the patch when it is not installed.
        """
        with self.lock:
            known = self._installed.get(key)
            if known is None:
                patch = make()
                known = self._installed[key] = (patch, set())
                self._held.setdefault(holder, []).append(key)
                patch.install()
            elif holder in known[1]:
                return
            else:
                self._held.setdefault(holder, []).append(key)
            known[1].add(holder)

    def release(self, holder: object) -> None:
        """Remove what nobody but `holder` holds."""
        with self.lock:
            keys = self._held.get(holder, [])
            while keys:
                patch, holders = self._installed[keys[-1]]
                if not holders or (len(holders) == 1 and holder in holders):
                    patch.remove()
                    self._installed.pop(keys[-1])
                holders.discard(holder)
                keys.pop()
            self._held.pop(holder, None)

    @contextmanager
    def lifted(self) -> Generator[None]:
        """Take out everything that is installed, and put it in place again when the context ends."""
        with self.lock:
            lifted = [patch for patch, _ in self._installed.values()]
            for patch in reversed(lifted):
                patch.remove()
            try:
                yield
            finally:
                for patch in lifted:
                    patch.install()

    def find(self, key: Hashable) -> Patch | None:
        """Return an installed patch."""
        known = self._installed.get(key)
        return None if known is None else known[0]


class PatchGroup:
    """Several patches that are installed and removed together.

    Dynamo is not told what it may inline in their place: this is for methods that it knows by their classes.

    Args:
        patches: They.
        methods: Class, name and what the class has under it, for the methods that are patched.
    """

    def __init__(
        self, patches: Sequence[Trampoline | SlotPatch], methods: Sequence[tuple[type, str, Any]] = ()
    ) -> None:
        self._methods = [(vars(owner), name, found) for owner, name, found in methods]
        self._codes = [patch.codes() for patch in patches if isinstance(patch, Trampoline)]
        self._slots = [patch for patch in patches if isinstance(patch, SlotPatch)]

    def fits(self) -> bool:
        """Return whether installing it changes the functions and methods as they are now."""
        for held, name, found in self._methods:
            if held.get(name) is not found:
                return False
        for function, own, _ in self._codes:
            if function.__code__ is not own:
                return False
        return all(patch.is_current() for patch in self._slots)

    def install(self) -> None:
        """Put all of them in place."""
        for function, _, lent in self._codes:
            function.__code__ = lent
        for patch in self._slots:
            patch.install()

    def remove(self) -> None:
        """Undo all of them, the last one first."""
        for patch in reversed(self._slots):
            patch.remove()
        for function, own, lent in self._codes:
            if function.__code__ is lent:
                function.__code__ = own


class Trampoline:
    """Lends a Python function the code of a template, and gives it its own code back.

    A template is a function whose string constants stand for objects. It must use no global names and no closure: it
    runs with the globals of the function that it is lent to. These constants are bound to: ``"<original>"`` the
    function with its own code; ``"<beneath>"`` the same without what a running trace of torch.fx has put around it;
    ``"<reference>"`` a weak reference to the function itself.

    Args:
        function: The function; its identity, name, attributes and defaults stay as they are.
        template: Whose code it gets.
        constants: String constant -> what it stands for, in addition to these.
        filename: Of the code while it is exchanged; by default the function's own.
        shows_signature: Whether the function shows its own signature meanwhile, and not the one of the template.
        beneath: What stands for ``"<beneath>"``; by default the function with its own code.
    """

    def __init__(
        self,
        function: FunctionType,
        template: Any,
        constants: Mapping[str, Any],
        filename: str | None = None,
        *,
        shows_signature: bool = False,
        beneath: Any = None,
    ) -> None:
        self._reference = weakref.ref(function)
        code = self._own = function.__code__
        self.original = with_code(function, code)
        """The function with its own code, whatever is installed."""
        self.beneath: Any = self.original if beneath is None else beneath
        """The same, without what a running trace of torch.fx has put around it."""
        self.is_lasting = set(code.co_freevars) <= {"__class__"}
        """Whether it can be kept for later without keeping alive what the function has closed over."""
        self._shown: dict[str, Any] = {DYNAMO_INLINE: self.original}
        if shows_signature and not hasattr(function, "__signature__"):
            with contextlib.suppress(TypeError, ValueError):  # It may stand for something that has none.
                self._shown["__signature__"] = inspect.signature(function)
        bound = {
            **constants,
            _ORIGINAL: self.original,
            _BENEATH: self.beneath,
            _REFERENCE: self._reference,
        }
        lent = self._lent = _with_constants(template.__code__, bound, code, filename or code.co_filename)
        # Dynamo runs in other threads too. It is to see through the exchange: when it meets a frame of the code, and
        # when it inlines the function.
        skip_frame(lent)

    def codes(self) -> tuple[FunctionType, CodeType, CodeType]:
        """Return the function, its own code, and the one that it is lent."""
        return cast("FunctionType", self._reference()), self._own, self._lent

    def fits(self, found: Any) -> bool:
        """Return whether installing changes `found` as it is now."""
        return found is not None and found is self._reference() and found.__code__ is self._own

    def install(self) -> None:
        """Exchange the code."""
        function = self._reference()
        if function is not None:
            vars(function).update(self._shown)
            function.__code__ = self._lent

    def remove(self) -> None:
        """Give the function its own code back, unless somebody else has given it another one."""
        function = self._reference()
        if function is None:
            return
        if function.__code__ is self._lent:
            function.__code__ = self._own
        for name, value in self._shown.items():
            if vars(function).get(name) is value:
                del vars(function)[name]


class SlotPatch:
    """Replaces what a class has under a name, for what is no Python function with a code to exchange."""

    is_lasting = True
    """Whether it can be kept for later."""

    def __init__(self, owner: type, name: str, template: Any, constants: Mapping[str, Any]) -> None:
        self._owner = owner
        self._name = name
        self._former = vars(owner).get(name, _ABSENT)
        self.original: Any = getattr(owner, name)
        self.beneath = self.original
        bound = {**constants, _ORIGINAL: self.original, _BENEATH: self.original}
        code = template.__code__
        lent = _with_constants(code, bound, code, code.co_filename)
        self._replacement = FunctionType(lent, template.__globals__, name)

    def fits(self, found: Any) -> bool:
        """Return whether installing changes `found`."""
        return found is self._former

    def is_current(self) -> bool:
        """Return whether the class has, itself or from its bases, what it had when this was made."""
        found = vars(self._owner).get(self._name, _ABSENT)
        return found is self._former and getattr(self._owner, self._name) is self.original

    def install(self) -> None:
        """Put the replacement there."""
        setattr(self._owner, self._name, self._replacement)

    def remove(self) -> None:
        """Put back what was there, unless somebody else has put something there since."""
        if vars(self._owner).get(self._name) is not self._replacement:
            return
        if self._former is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._former)


class NamespacePatch:
    """Replaces values in the globals of a module.

    Args:
        namespace: The globals.
        replacements: Name -> (what must be there, what takes its place). A name that is not there, because it is one of
            Python's builtins, is added for as long.
    """

    def __init__(self, namespace: dict[str, Any], replacements: Mapping[str, tuple[Any, Any]]) -> None:
        self._namespace = namespace
        self._originals = {name: original for name, (original, _) in replacements.items()}
        self._lent = {name: replacement for name, (_, replacement) in replacements.items()}
        self._added: list[str] = []

    def install(self) -> None:
        """Put the replacements there."""
        namespace, originals = self._namespace, self._originals
        if _holds(namespace, originals):
            namespace.update(self._lent)
            return
        for (name, original), replacement in zip(originals.items(), self._lent.values(), strict=True):
            found = namespace.get(name, _ABSENT)
            if found is original:
                namespace[name] = replacement
            elif found is _ABSENT:
                self._added.append(name)
                namespace[name] = replacement

    def remove(self) -> None:
        """Put back what was there, where nobody else has put something since."""
        namespace, lent = self._namespace, self._lent
        if not self._added and _holds(namespace, lent):
            namespace.update(self._originals)
            return
        for (name, original), replacement in zip(self._originals.items(), lent.values(), strict=True):
            if namespace.get(name) is not replacement:
                continue
            if name in self._added:
                del namespace[name]
            else:
                namespace[name] = original
        self._added.clear()


def _holds(namespace: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a namespace has the very values under their names; in a loop of Python it would take long."""
    return all(map(is_, map(namespace.get, values), values.values()))


def patch_for(
    owner: type, name: str, template: Any, constants: Mapping[str, Any], found: Any = None
) -> Trampoline | SlotPatch:
    """Return what changes the function that `owner` has under `name`, or `found`, which lies beneath it."""
    found = vars(owner).get(name) if found is None else found
    if isinstance(found, FunctionType):
        return Trampoline(found, template, constants)
    return SlotPatch(owner, name, template, constants)


def with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """Return a copy of a function that has other code.

    Args:
        function: Any.
        code: With the same names of what is closed over.
    """
    copied = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
    copied.__doc__, copied.__annotations__ = function.__doc__, function.__annotations__
    vars(copied).update(vars(function))
    return copied


def _with_constants(template: CodeType, bound: Mapping[str, Any], like: CodeType, filename: str) -> CodeType:
    """Return the template with its constants filled in, to be lent to a function that has the code `like`."""
    changes: dict[str, Any] = {
        "co_consts": tuple(
            bound.get(value, value) if type(value) is str else value for value in template.co_consts
        ),
        # Python insists on as many as the function's closure has cells.
        "co_freevars": like.co_freevars,
        "co_filename": filename,
        "co_name": like.co_name,
        "co_firstlineno": like.co_firstlineno,
    }
    if sys.version_info >= (3, 11):
        code = changes["co_code"] = _copying_cells(len(like.co_freevars)) + template.co_code
        changes["co_qualname"] = like.co_qualname
        # "No columns, same line", for eight units of two bytes each.
        units = len(code) // 2
        changes["co_linetable"] = b"".join(
            bytes((0xE8 | min(7, units - start - 1), 0)) for start in range(0, units, 8)
        )
    else:
        size = len(template.co_code)
        changes["co_linetable"] = b"".join(
            bytes((min(254, size - start), 0)) for start in range(0, size, 254)
        )
    return template.replace(**changes)


def _copying_cells(count: int) -> bytes:
    """Return the instruction by which a function makes its closure its own, which Python takes for granted.

    The template reads none of the cells. But whoever looks at the variables of its frame does, as debuggers and pytest
    do, and the process dies if they are not there.
    """
    if count == 0:
        return b""
    extension = bytes((dis.opmap["EXTENDED_ARG"], count >> 8)) if count > 255 else b""
    return extension + bytes((dis.opmap["COPY_FREE_VARS"], count & 255))
