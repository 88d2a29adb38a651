"""Putting the program of a submodule in the place of its calls."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any

from torch import nn

from fxplug.capture import Tracer
from fxplug.errors import GraphError, UnknownNameError
from fxplug.execute import GraphModule, set_path
from fxplug.execute.folder import overriding_class
from fxplug.ir import PATH_OPCODES, Graph, Node, effects, map_arg, split_stars
from fxplug.ir.clone import drop_notes
from fxplug.ir.guards import StateGuard
from fxplug.ir.notes import RESULTS_OF_ANALYSES
from fxplug.passes.parts import hand_on_origins
from fxplug.passes.sharing import free_path
from fxplug.passes.tensor_table import TensorTable
from fxplug.semantics.internals import has_hooks, modules_of

__all__ = ["inline_submodule", "why_not_inlined"]

_CODE = "FXP-G032"


def inline_submodule(module: GraphModule, path: str) -> int:
    """Put the program of a submodule in the place of each of its calls.

    Parameters and submodules stay the objects that they are, under the paths that they have. New nodes run within the
    regions of the call, and have the origins that they have in the submodule.

    Args:
        module: Changed in place.
        path: Of a submodule that is called: a graph module, or one that can be captured.

    Returns:
        How many calls were replaced.

    Raises:
        UnknownNameError: No node calls a submodule at `path`.
        GraphError: The submodule has hooks, guards, or a calling convention of its own, or a call does not fit it.
            Nothing was changed.
        TraceError: It cannot be captured. Nothing was changed.

    Example:
        ::

            fxplug.inline_submodule(module, "stem")
    """
    calls = module.graph.find_nodes(op="call_module", target=path)
    if not calls:
        raise UnknownNameError("submodule that is called", path, module.graph.distinct_targets("call_module"))
    called = module.get_submodule(path)
    reason = why_not_inlined(module, called)
    if reason:
        raise _refused(path, reason)
    inner = called if isinstance(called, GraphModule) else _captured(called)
    reason = why_not_inlined(module, inner)
    if reason:
        raise _refused(path, reason)
    for call in calls:
        _bind(inner, call, path)
        _check_users(module, inner, call, path)
    tensors = TensorTable(module)
    paths = _paths(module, inner, path, is_captured=inner is not called)
    if module.graph.captured_training is None:
        module.graph.captured_training = inner.graph.captured_training
    module.graph.state_guards += _state_guards_of(inner, path)
    overrides = {
        f"{path}.{name}".rstrip("."): flags for name, flags in inner.graph.training_overrides.items()
    }
    module.graph.training_overrides = {**overrides, **module.graph.training_overrides}
    for call in calls:  # Bound anew: one may be given what another returned.
        _put_in_place(module.graph, call, inner.graph, _bind(inner, call, path), paths)
    _make_plain(module, path)
    constants = [free for target, free in paths.items() if free != f"{path}.{target}"]
    hand_on_origins(module, tensors, module, "inline_submodule", constants)
    return len(calls)


def _state_guards_of(inner: GraphModule, path: str) -> tuple[StateGuard, ...]:
    """Return what the program of a submodule relies on, as guards of a program that has it at a path."""
    own = inner.graph.captured_training
    flags = () if own is None else (StateGuard(f"self.{path}.training", (), own),)
    return (*flags, *[guard.below(path) for guard in inner.graph.state_guards])


def why_not_inlined(module: GraphModule, called: nn.Module) -> str:
    """Return why a submodule has to stay one, empty where it need not.

    Args:
        module: Calls it.
        called: The submodule.
    """
    if has_hooks(called):
        return "it has hooks, which nobody would call"
    if "forward" in vars(called):
        return "it has a forward of its own on the instance"
    if not isinstance(called, GraphModule):
        return ""
    own = overriding_class(called, GraphModule)
    if own is not None:
        return f"its class {own.__qualname__} has a forward or __call__ of its own"
    if called.guard_set is not None:
        return "it has guards, which nobody would check"
    if called.graph._codegen is not None or called.graph.code_transformer is not None:
        return "its graph has a calling convention of its own"
    modes = {module.training, called.training, called.graph.captured_training}
    outer = module.graph.captured_training
    if called.graph.captured_training is not None and (len(modes) > 1 or outer not in {None, *modes}):
        return f"it was captured for self.training being {called.graph.captured_training}"
    if called is module:
        return "it calls itself"
    return ""


def _refused(path: str, reason: str) -> GraphError:
    return GraphError(
        f"Cannot inline the submodule {path!r}: {reason}. Nothing was changed. Take that away first, or leave the "
        "submodule as it is.",
        code=_CODE,
    )


def _captured(called: nn.Module) -> GraphModule:
    tracer = Tracer()
    graph = tracer.trace(called)
    return GraphModule(tracer.root, graph, type(called).__name__)


# -- arguments and results


def _bind(inner: GraphModule, call: Node, path: str) -> dict[str, Any]:
    """Return parameter -> argument for a call."""
    try:
        bound = inspect.signature(inner.forward).bind(*call._args, **call._kwargs)
    except TypeError as error:
        raise _refused(path, f"its call {call._name!r} does not fit its parameters ({error})") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _check_users(module: GraphModule, inner: GraphModule, call: Node, path: str) -> None:
    """Refuse a call whose result is a container that somebody may change."""
    outputs = inner.graph.find_nodes(op="output")
    result = outputs[-1].args[0] if outputs else None
    if isinstance(result, Node):
        return
    for user in call.users:
        if (
            user._op != "output"
            and not _takes_element(user, call)
            and effects.effect_of(user, module).must_be_kept
        ):
            raise _refused(
                path,
                f"it returns a {type(result).__name__}, and {user._name!r} may change what {call._name!r} returned",
            )


def _takes_element(user: Node, call: Node) -> bool:
    return (
        user._op == "call_function"
        and user._target is operator.getitem
        and user._args[0] is call
        and type(user._args[1]) in {int, str}
    )


# -- nodes


def _paths(module: GraphModule, inner: GraphModule, path: str, *, is_captured: bool) -> dict[str, str]:
    """Return path in the submodule -> path in the module."""
    found: dict[str, str] = {}
    for node in inner.graph.nodes:
        if node._op not in PATH_OPCODES or node._target in found:
            continue
        target = str(node._target)
        if is_captured and target in inner.graph.lifted:
            free = free_path(module, target.replace(".", "_"))
            module.graph.lifted[free] = inner.graph.lifted[target]
            set_path(module, free, inner.graph.lifted[target], persistent=False)
            found[target] = free
        else:
            found[target] = f"{path}.{target}"
    return found


def _put_in_place(
    graph: Graph, call: Node, source: Graph, values: dict[str, Any], paths: dict[str, str]
) -> None:
    mapping: dict[Node, Any] = {
        node: values[split_stars(node._target)[1]] for node in source.nodes if node._op == "placeholder"
    }
    result: Any = None
    with graph.inserting_before(call):
        for node in source.nodes:
            if node._op == "output":
                result = map_arg(node._args[0], mapping.__getitem__)
            elif node._op != "placeholder":
                made = graph.node_copy(node, mapping.__getitem__)
                if node._op in PATH_OPCODES:
                    made.target = paths[node._target]
                made.region = (*call._region, *node._region)
                mapping[node] = made
                drop_notes((made,), RESULTS_OF_ANALYSES)  # They may be those of another call.
    _replace(graph, call, result)


def _replace(graph: Graph, call: Node, result: Any) -> None:
    """Let the users of a node use what it returns, and erase it."""
    if isinstance(result, Node):
        if call._meta and result._op.startswith("call_"):
            facts = {key: call._meta[key] for key in RESULTS_OF_ANALYSES & call._meta.keys()}
            result.meta.update(facts)
        call.replace_all_uses_with(result)
    else:
        for user in list(call.users):
            if _takes_element(user, call):
                _replace(graph, user, result[user._args[1]])
            else:
                user.args = map_arg(user._args, lambda used: result if used is call else used)
                user.kwargs = map_arg(user._kwargs, lambda used: result if used is call else used)
    graph.erase_node(call)


def _make_plain(module: GraphModule, path: str) -> None:
    """Put an empty module in the place of a graph module that only holds what its program used."""
    called = module.get_submodule(path)
    targets = {node._target for node in module.graph.nodes if node._op in PATH_OPCODES}
    prefix, _, name = path.rpartition(".")
    holder = module.get_submodule(prefix)
    is_own = holder is module or type(holder) is nn.Module  # Modules of the user stay as they are.
    if type(called) is not GraphModule or path in targets or not is_own:
        return
    plain = nn.Module()
    state = vars(copy.copy(called))  # With tables of its own: the user may hold it elsewhere.
    vars(plain).update({key: value for key, value in state.items() if key not in _OWN})
    modules_of(holder)[name] = plain


_OWN = frozenset({"_class_name", "_compiled", "_graph", "_guards", "meta"})
"""What a graph module has besides what any module has."""
