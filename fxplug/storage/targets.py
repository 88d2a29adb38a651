"""Which functions a file may name: a closed table, in both directions, plus what the caller allows by name.

A name is ``"module:path"``, for example ``"torch:relu"``, ``"operator:add"`` or
``"torch.ops:aten.relu.default"``; a method name that the caller allows is written ``".name"``. Looking a name
up imports nothing: the table refers to modules that are loaded with fxplug. Only names in `allow` are
imported, because the caller wrote them, and ``"@plugin:name"`` stands for what an installed plugin brings
(`fxplug.storage.provisions`).

What the table leaves out on purpose: anything that reads or writes files, loads or compiles code, starts
threads, changes global state, or calls a function that it is handed. `getattr` is in it, and therefore
restricted (`check_call`).
"""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import operator
import re
import sys
import types
import typing
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
import torch.nn.utils.rnn

from fxplug.ir import NodeRef, is_class_method
from fxplug.semantics import checks, copies, generators, internals
from fxplug.storage.faults import Codes, Refusal
from fxplug.storage.provisions import Provision
from fxplug.storage.text_fields import is_plain_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["TargetTable", "look_up"]

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_METHOD = re.compile(r"\.[A-Za-z_]\w*", re.ASCII)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS: dict[str, Any] = {
    name: getattr(builtins, name)
    for name in _words(
        """
        abs all any bool bytes complex dict divmod enumerate float frozenset getattr hasattr hash int
        isinstance len list max min pow range reversed round set slice sorted str sum tuple zip
        """
    )
} | {"NoneType": type(None)}

# No defaultdict, which calls what it is given.
_COLLECTIONS: dict[str, Any] = {"Counter": Counter, "OrderedDict": OrderedDict}

# What guards ask. No check_raises, which calls what it is given.
_CHECKS: dict[str, Any] = {
    function.__name__: function
    for function in (
        checks.are_distinct,
        checks.attribute_names,
        checks.check_equal,
        checks.check_length,
        checks.check_like,
        checks.check_true,
        checks.check_unchanged,
        checks.class_of,
        checks.is_instance,
        checks.refers_to,
        checks.same_value,
        checks.share_memory,
        checks.the_same,
    )
}

_COPIES: dict[str, Any] = {"clone_tensors": copies.clone_tensors}
_GENERATORS: dict[str, Any] = {
    function.__name__: function
    for function in (generators.default_generator, generators.generator_from_state)
}
_SEQUENCES: dict[str, Any] = {"PackedSequence": torch.nn.utils.rnn.PackedSequence}

# Listed and not read off the module: a later Python may add something like operator.call.
_OPERATORS: dict[str, Any] = {
    name: getattr(operator, name)
    for name in _words(
        """
        abs add and_ concat contains countOf delitem eq floordiv ge getitem gt iadd iand iconcat ifloordiv
        ilshift imatmul imod imul index indexOf inv invert ior ipow irshift is_ is_not isub itruediv ixor le
        length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem sub truediv truth xor
        """
    )
}

# Functions and types of torch that are no operators, but compute a value and do nothing else.
_TORCH_NAMES = _words(
    """
    Size Tensor _assert broadcast_shapes can_cast device dtype finfo get_default_dtype iinfo is_anomaly_enabled
    is_autocast_enabled is_grad_enabled is_inference_mode_enabled is_tensor layout lobpcg memory_format pca_lowrank
    promote_types svd_lowrank sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum unique unravel_index
    """
)

_CONTEXTS = _words("autocast enable_grad inference_mode no_grad set_grad_enabled")

# Calls the function that it is given.
_DENIED_FUNCTIONALS = _words("triplet_margin_with_distance_loss")

# Methods of tensors that call what they are given, replace the tensor behind its back, or share memory
# between processes.
_DENIED_METHODS = _words(
    """
    apply_ as_subclass map2_ map_ module_load register_hook register_post_accumulate_grad_hook reinforce
    share_memory_ storage_type
    """
)

_FORMATTING = frozenset({"format", "format_map"})
"""Methods of texts that read attributes which the text names."""
_TRACKER = 10
"""Which argument of ``torch.lobpcg`` it calls."""

_SPECIAL_METHODS = frozenset(
    f"__{name}__"
    for name in _words(
        """
        abs add and bool complex contains delitem divmod eq float floordiv ge getitem gt iadd iand ifloordiv
        ilshift imatmul imod imul index int invert ior ipow irshift isub iter itruediv ixor le len lshift lt
        matmul mod mul ne neg or pos pow radd rand rdivmod rfloordiv rlshift rmatmul rmod rmul ror round rpow
        rrshift rshift rsub rtruediv rxor setitem sub truediv xor
        """
    )
)

_METHOD_OWNERS = (torch.Tensor, torch.Size, str, bytes, int, float, complex, list, tuple, dict, set)

# Attributes through which a frame and its variables could be reached.
_FRAME_ATTRIBUTES = _words(
    """
    ag_await ag_code ag_frame cr_await cr_code cr_frame cr_origin f_back f_builtins f_code f_globals f_locals
    f_trace func_code func_globals gi_code gi_frame gi_yieldfrom tb_frame tb_next
    """
)

_OPERATOR_LIBRARIES = frozenset({"aten", "prims", "fxplug"})


# -- the closed table


def _computes(packet: Any) -> bool:
    """Return whether the overloads of an operator compute on tensors, and none opens a file."""
    if not isinstance(packet, internals.OpOverloadPacket):
        return False
    schemas = [internals.schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    if any(argument.name == "filename" for schema in schemas for argument in schema.arguments):
        return False
    return any("Tensor" in str(schema) for schema in schemas)


@functools.lru_cache(maxsize=4096)
def _is_operator(name: str) -> bool:
    return not name.startswith("__") and _computes(getattr(torch.ops.aten, name, None))


def _from_torch(path: str) -> Any:
    if path.startswith("Tensor."):
        name = path.removeprefix("Tensor.")
        return getattr(torch.Tensor, name, None) if name in _method_names() else None
    return _HOLDERS["torch"].get(path) if path in _TORCH_NAMES or _is_operator(path) else None


def _from_functional(path: str) -> Any:
    function = vars(torch.nn.functional).get(path)
    if path.startswith("_") or path in _DENIED_FUNCTIONALS:
        return None
    if isinstance(function, types.FunctionType) and function.__module__ == "torch.nn.functional":
        return function
    # Some builtins have another name in the module that defines them, e.g. logsigmoid.
    is_builtin = isinstance(function, types.BuiltinFunctionType)
    return function if is_builtin and _is_operator(function.__name__) else None


def _from_operators(path: str) -> Any:
    library, _, rest = path.partition(".")
    name, _, overload = rest.partition(".")
    if (
        library not in _OPERATOR_LIBRARIES
        or "." in overload
        or name.startswith("__")
        or overload.startswith("__")
    ):
        return None
    packet = getattr(getattr(torch.ops, library), name, None) if name else None
    if not _computes(packet):
        return None
    found = getattr(packet, overload, None) if overload else packet
    return found if isinstance(found, (internals.OpOverload, internals.OpOverloadPacket)) else None


def _from_library(holder: str, prefix: str) -> Callable[[str], Any]:
    def find(path: str) -> Any:
        return _HOLDERS[holder].get(path) if _is_operator(prefix + path) else None

    return find


def _from_math(path: str) -> Any:
    return None if path.startswith("_") else vars(math).get(path)


# Where the names of each module are looked up. Dicts and no attributes: asking torch for an unknown attribute
# may import a submodule.
_HOLDERS: dict[str, Mapping[str, Any]] = {
    "builtins": _BUILTINS,
    "collections": _COLLECTIONS,
    "fxplug.semantics.checks": _CHECKS,
    "fxplug.semantics.copies": _COPIES,
    "fxplug.semantics.generators": _GENERATORS,
    "math": vars(math),
    "operator": _OPERATORS,
    "torch": vars(torch),
    "torch.nn.utils.rnn": _SEQUENCES,
    "torch.nn.functional": vars(torch.nn.functional),
    "torch.linalg": vars(torch.linalg),
    "torch.fft": vars(torch.fft),
    "torch.special": vars(torch.special),
    "torch._C._nn": vars(internals.NN_OPERATORS),
    "torch.nn.parameter": {"Parameter": torch.nn.Parameter},
    "typing": {"Any": typing.Any},
}

_RULES: dict[str, Callable[[str], Any]] = {
    "builtins": _BUILTINS.get,
    "collections": _COLLECTIONS.get,
    "fxplug.semantics.checks": _CHECKS.get,
    "fxplug.semantics.copies": _COPIES.get,
    "fxplug.semantics.generators": _GENERATORS.get,
    "math": _from_math,
    "operator": _OPERATORS.get,
    "torch": _from_torch,
    "torch.nn.utils.rnn": _SEQUENCES.get,
    "torch.nn.functional": _from_functional,
    "torch.linalg": _from_library("torch.linalg", "linalg_"),
    "torch.fft": _from_library("torch.fft", "fft_"),
    "torch.special": _from_library("torch.special", "special_"),
    "torch._C._nn": _from_library("torch._C._nn", ""),
    "torch.nn.parameter": _HOLDERS["torch.nn.parameter"].get,
    "torch.ops": _from_operators,
    "typing": _HOLDERS["typing"].get,
}


@functools.lru_cache(maxsize=1)
def _method_names() -> frozenset[str]:
    names = {
        name
        for owner in _METHOD_OWNERS
        for name in dir(owner)
        if not name.startswith("_") and callable(getattr(owner, name, None))
    }
    return frozenset(names - _DENIED_METHODS) | _SPECIAL_METHODS


def look_up(name: str) -> Any:
    """Return what a name of the closed table stands for, None when it is not in there; import nothing."""
    if _NAME.fullmatch(name) is None:
        return None
    module, _, path = name.partition(":")
    rule = _RULES.get(module)
    found = rule(path) if rule is not None else None
    return found if callable(found) or found is typing.Any else None


@functools.lru_cache(maxsize=1)
def _names_by_identity() -> dict[int, list[str]]:
    """Return under which names the holders have an object; `look_up` decides which of them count."""
    names: dict[int, list[str]] = {}
    for module, holder in _HOLDERS.items():
        for name, value in holder.items():
            names.setdefault(id(value), []).append(f"{module}:{name}")
    for name in _method_names():
        names.setdefault(id(getattr(torch.Tensor, name, None)), []).append(f"torch:Tensor.{name}")
    return names


def _closed_name(target: Any) -> str | None:
    """Return the name under which the closed table has `target`, None when it does not."""
    if isinstance(target, (internals.OpOverload, internals.OpOverloadPacket)):
        names = [f"torch.ops:{target}"]
    else:
        names = _names_by_identity().get(id(target), [])
    return next((name for name in names if look_up(name) is target), None)


# -- the table of one call


class TargetTable:
    """Translates between callables and their names in files.

    Args:
        allow: Names beyond the closed table: ``"package.module:function"`` for functions, ``".name"`` for
            methods. The modules of functions that are really used are imported.
        provision: What plugins bring.

    Raises:
        Refusal: An entry of `allow` has another form.
    """

    def __init__(self, allow: Iterable[str] = (), provision: Provision | None = None) -> None:
        self.provision = provision if provision is not None else Provision()
        """What plugins bring."""
        entries: tuple[Any, ...] = (allow,) if isinstance(allow, str) else tuple(allow)
        for entry in entries:
            if not isinstance(entry, str) or not (_NAME.fullmatch(entry) or _METHOD.fullmatch(entry)):
                raise Refusal(
                    f"allow holds {entry!r}. Name a function as 'package.module:function', a method as "
                    f"'.method'."
                )
        self._allowed = dict.fromkeys(entries)
        self._resolved: dict[str, Any] = {}
        self._names: dict[int, tuple[Any, str]] = {}

    def resolve(self, name: Any) -> Any:
        """Return the callable with this name, which a graph may call or hand on.

        Raises:
            Refusal: It is neither in the closed table, nor brought by a plugin to be called, nor allowed.
        """
        found = self.resolve_annotation(name)
        if isinstance(name, str) and self.provision.is_name(name) and _is_module_class(found):
            raise _uncallable(name)
        return found

    def resolve_annotation(self, name: Any) -> Any:
        """Return what an annotation names: what `resolve` does, and classes of modules that plugins bring.

        Raises:
            Refusal: It is neither in the closed table, nor brought by a plugin, nor allowed.
        """
        found = self._resolved.get(name) if isinstance(name, str) else None
        if found is not None:
            return found
        if isinstance(name, str) and self.provision.is_name(name):
            found = self._resolved[name] = self.provision.resolve(name)
            return found
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise Refusal(f"{name!r} is not the name of a function. The file is damaged.", Codes.NAME)
        found = _import(name) if name in self._allowed else look_up(name)
        if found is None:
            raise Refusal(
                f"{name!r} is not among the functions that a file may name. If you know what it does and "
                f"trust the file, allow it: load(..., allow=[{name!r}]).",
                Codes.NOT_ALLOWED,
            )
        self._resolved[name] = found
        return found

    def name_of(self, target: Any) -> str:
        """Return the name from which `resolve` finds `target` again.

        Raises:
            Refusal: There is none, or it would have to be allowed.
        """
        name = self.annotation_name(target)
        if self.provision.is_name(name) and _is_module_class(target):
            raise _uncallable(name)
        return name

    def annotation_name(self, target: Any) -> str:
        """Return the name from which `resolve_annotation` finds `target` again.

        Raises:
            Refusal: There is none, or it would have to be allowed.
        """
        known = self._names.get(id(target))
        if known is not None and known[0] is target:
            return known[1]
        name = _closed_name(target)
        if name is None:
            name = self.allowed_name(target)
        if name is None:
            name = self.provision.name_of(target)
        if name is None:
            raise _unnamed(target)
        self._names[id(target)] = (target, name)
        return name

    def allowed_name(self, target: Any) -> str | None:
        """Return the name under which the caller allowed `target`, None when it is not allowed.

        Raises:
            Refusal: An allowed name leads to nothing.
        """
        return next((name for name in self._allowed if ":" in name and _is_same(_import(name), target)), None)

    def allowed(self, name: str) -> Any:
        """Return what an allowed name leads to, None when the name is not allowed.

        Raises:
            Refusal: It leads to nothing.
        """
        return _import(name) if name in self._allowed else None

    def resolve_context(self, name: Any) -> Any:
        """Return the context manager that a region names.

        Raises:
            Refusal: It is neither one of torch's gradient and autocast contexts nor allowed.
        """
        if isinstance(name, str) and name.startswith("torch:") and name.removeprefix("torch:") in _CONTEXTS:
            return vars(torch)[name.removeprefix("torch:")]
        # The functions of the table are no contexts, and a call of one here would be no call that is checked.
        if isinstance(name, str) and (name in self._allowed or self.provision.is_name(name)):
            return self.resolve(name)
        raise Refusal(
            f"{str(name)[:80]!r} is not among the contexts that a file may enter. If you know what it does and trust "
            f"the file, allow it: load(..., allow=[{str(name)[:80]!r}]).",
            Codes.NOT_ALLOWED,
        )

    def context_name(self, context: Any) -> str:
        """Return the name from which `resolve_context` finds `context` again.

        Raises:
            Refusal: There is none, or it would have to be allowed.
        """
        for name in _CONTEXTS:
            if vars(torch).get(name) is context:
                return f"torch:{name}"
        if _closed_name(context) is not None:
            raise Refusal(f"a region enters {_closed_name(context)!r}, which is no context. Take it away.")
        return self.name_of(context)

    def check_method(self, name: Any) -> None:
        """Refuse a method name that neither tensors nor Python's plain types have, unless it is allowed.

        Raises:
            Refusal: The method must not be called.
        """
        if name in _method_names() or f".{name}" in self._allowed:
            return
        if not isinstance(name, str) or _METHOD.fullmatch(f".{name}") is None:
            raise Refusal(f"{name!r} is not the name of a method. The file is damaged.", Codes.NAME)
        raise Refusal(
            f"the method {name!r} is not among those that a file may call. If you know what it does and "
            f"trust the file, allow it: allow=['.{name}'].",
            Codes.NOT_ALLOWED,
        )

    def check_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that would reach behind the table.

        ``getattr``, and the fields of a text that is formatted, could lead from any value to the interpreter's own
        objects; ``key=`` of ``sorted`` and ``tracker`` of ``torch.lobpcg`` would call a value.

        Args:
            target: A resolved callable, or a method name.
            args: Positional arguments, nodes as `NodeRef`.
            kwargs: Keyword arguments.

        Raises:
            Refusal: The call is not one that a file may make.
        """
        if isinstance(kwargs.get("key"), NodeRef):
            raise Refusal(
                "its argument 'key' is a computed value, which would be called. Only named functions may be.",
                Codes.NOT_ALLOWED,
            )
        if target is torch.lobpcg and (*args[_TRACKER:], kwargs.get("tracker"))[0] is not None:
            raise Refusal(
                "its argument 'tracker' would be called with what is computed inside. Leave it out.",
                Codes.NOT_ALLOWED,
            )
        if isinstance(target, str):
            self._check_format(target, args)
            return
        if target is not getattr and target is not hasattr:
            return
        attribute = args[1] if len(args) > 1 else None
        if type(attribute) is not str or attribute.startswith("_") or attribute in _FRAME_ATTRIBUTES:
            raise Refusal(
                f"it reads the attribute {attribute!r}. A stored graph may only read attributes whose names "
                f"are literal and public: read the value in the model before the graph needs it.",
                Codes.NOT_ALLOWED,
            )

    def _check_format(self, method: str, args: tuple[Any, ...]) -> None:
        """Refuse a text that reads attributes behind the table when it is formatted, or that is only known then.

        Raises:
            Refusal: It does.
        """
        if method not in _FORMATTING or f".{method}" in self._allowed:
            return
        text = args[0] if args else None
        if type(text) is not str or not is_plain_format(text, _FRAME_ATTRIBUTES):
            raise Refusal(
                f"the text that it formats is {repr(text[:80]) if type(text) is str else 'computed'}, which may read "
                f"attributes that are not public. If you trust the file, allow it: allow=['.{method}'].",
                Codes.NOT_ALLOWED,
            )


def _is_module_class(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, torch.nn.Module)


def _uncallable(name: str) -> Refusal:
    return Refusal(
        f"{name!r} is a class of modules. A file may hold its instances, which are made without its constructor, and "
        f"neither call the class nor hand it on: make the module outside of the graph.",
        Codes.NOT_ALLOWED,
    )


def _import(name: str) -> Any:
    """Return what an allowed name leads to.

    Raises:
        Refusal: The module or the attribute does not exist.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = torch.ops if module == "torch.ops" else importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Refusal(
            f"allow names {name!r}, which cannot be found: {error}. Install it, or correct the name."
        ) from error
    except Exception as error:
        raise Refusal(
            f"allow names {name!r}, whose module cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not callable(found):
        raise Refusal(
            f"allow names {name!r}, which is a {type(found).__name__} and not a function. Correct the name."
        )
    return found


def _unnamed(target: Any) -> Refusal:
    module, path = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if is_class_method(target):
        owner = target.__self__
        module, path = owner.__module__, f"{owner.__qualname__}.{target.__name__}"
    if isinstance(target, (internals.OpOverload, internals.OpOverloadPacket)):
        module, path = "torch.ops", str(target)
    name = f"{module}:{path}"
    if _NAME.fullmatch(name) is None or not _is_same(_walk(sys.modules.get(str(module)), str(path)), target):
        return Refusal(
            f"{target!r} has no name under which a file could refer to it. Define it as a function at the "
            f"top level of a module, and name it in allow=.",
            Codes.NOT_ALLOWED,
        )
    return Refusal(
        f"{name!r} is not among the functions that a file may name. Allow it when saving and again when "
        f"loading: allow=[{name!r}].",
        Codes.NOT_ALLOWED,
    )


def _is_same(found: Any, target: Any) -> bool:
    return found is target or (is_class_method(target) and is_class_method(found) and found == target)


def _walk(holder: Any, path: str) -> Any:
    for part in path.split("."):
        holder = getattr(holder, part, None)
    return holder
