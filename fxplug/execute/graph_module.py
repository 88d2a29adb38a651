"""A module whose forward is a graph."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from fxplug.codegen import CompiledFunction, compile_code
from fxplug.errors import CodegenError, GraphError, InvalidArgumentError
from fxplug.execute.display import class_text
from fxplug.execute.failures import caught_by_program, note_failed_line
from fxplug.execute.folder import overriding_class, write_folder
from fxplug.execute.foreign import about_torch_fx, not_a_graph
from fxplug.execute.guards import NO_GUARDS, GuardedForward, GuardSet, relies_on_state
from fxplug.execute.paths import Holders, delete_path, has_path, module_at, set_path
from fxplug.execute.scripting import modules_apart, scripted_forward
from fxplug.ir import PATH_OPCODES, Graph, PythonCode, notebook_bundle
from fxplug.ir.collector import paused_collection
from fxplug.ir.guards import Guard
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import root_being_traced, runs_outside_dynamo, skip_frame
from fxplug.semantics.surroundings import tensor_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["RESERVED_ATTRIBUTES", "GraphModule"]


class _Forward:
    """Binds the compiled graph at the moment of access, so that an edited graph never runs old code.

    Nothing bound is kept on the instance: it would survive `copy.copy` tied to the wrong module, and make a
    reference cycle that keeps weights alive.
    """

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody assigns it
        # Dynamo finds this object itself behind super(), and goes on with plain functions and methods alone.
        return MethodType

    @property
    def __func__(self) -> Any:
        return _run_graph

    @property
    def __self__(self) -> Any:
        return None  # Some versions of Dynamo ask any method what it is bound to.

    def __get__(self, instance: GraphModule | None, owner: type[GraphModule]) -> Any:
        if instance is None:
            # torch.fx traces what the class of its root has as forward; here that hangs on the instance.
            root = root_being_traced(owner)
            return self if root is None else _compiled(root).function
        if is_dynamo_compiling():
            instance._refresh_code()  # pyright: ignore[reportPrivateUsage] - as below
        state = instance.__dict__
        compiled: CompiledFunction | None = state["_compiled"]
        if compiled is None or compiled.version != state["_graph"].version:
            compiled = instance._compile()  # pyright: ignore[reportPrivateUsage] - one class in two parts
        function: Any = compiled.function
        # Not every Dynamo knows what it is to bind a function.
        bound: Any = partial(function, instance) if is_dynamo_compiling() else function.__get__(instance)
        guards: GuardSet | None = state.get("_guards")
        if guards is None and relies_on_state(state["_graph"]):
            guards = NO_GUARDS
        return bound if guards is None else GuardedForward(instance, bound, guards)

    def __call__(self, instance: GraphModule, *args: Any, **kwargs: Any) -> Any:
        """Run the graph of `instance`, for whoever calls ``GraphModule.forward(instance, ...)``."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


# Where Dynamo has given up a module, it goes on with the frames that run in it. From those in which the program is
# looked up, or its code made, nothing is to be had; and a frame that looks itself up would never end.
skip_frame(_Forward.__get__.__code__, below=True)


def _run_graph(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _GRAPH_FORWARD.__get__(cast("GraphModule", module), GraphModule)(*args, **kwargs)


def _compiled(module: nn.Module) -> CompiledFunction:
    state = module.__dict__
    compiled: CompiledFunction | None = state["_compiled"]
    if compiled is None or compiled.version != state["_graph"].version:
        compiled = cast("GraphModule", module)._compile()  # pyright: ignore[reportPrivateUsage] - as above
    return compiled


_GRAPH_FORWARD = _Forward()


class GraphModule(nn.Module):
    """A module that runs a graph.

    The graph may be edited at any time: the next call runs the edited program, `recompile` is never needed.
    Parameters, buffers and submodules that the graph names are taken from the root as they are, shared and
    not copied.

    Args:
        root: The module that the graph's paths refer to, or a dict from dotted path to value.
        graph: The program. The module keeps this very object.
        class_name: Shown by ``repr`` and in the file name of generated code.

    Raises:
        GraphError: The graph names something that `root` does not have, or a reserved name.
        InvalidArgumentError: `root` is neither a module nor a dict, or `graph` is no graph.
    """

    meta: dict[str, Any]
    """Free notes about the module; copied with it."""

    def __init__(
        self, root: nn.Module | Mapping[str, Any], graph: Graph, class_name: str = "GraphModule"
    ) -> None:
        super().__init__()
        _check_parts(root, graph)
        state = self.__dict__
        state["_graph"] = graph
        state["_compiled"] = None
        state["_class_name"] = class_name
        state["meta"] = {}
        if isinstance(root, nn.Module):
            self.training = root.training
            if isinstance(root, GraphModule):
                state["meta"] = dict(root.meta)
                if "_guards" in root.__dict__:
                    state["_guards"] = root.__dict__["_guards"]
        if "_guards" not in state and graph.guard_set is not None:
            state["_guards"] = graph.guard_set.for_another_module()
        self._take_over(root, graph)
        graph.owning_module = self

    def _take_over(self, root: nn.Module | Mapping[str, Any], graph: Graph) -> None:
        """Let this module hold what the graph's paths name: the very objects of the root, nothing duplicated."""
        # Past the properties, which would double the time that this takes.
        paths = {node._target: None for node in graph.nodes.listed() if node._op in PATH_OPCODES}  # pyright: ignore[reportPrivateUsage]
        for top in {path.partition(".")[0] for path in paths}:
            if _is_reserved(type(self), top):
                raise _reserved(top)
        lifted = graph.lifted
        if lifted:
            # A module that runs the same constants already may have moved or converted them; its are the current ones.
            former = root.graph.lifted if isinstance(root, GraphModule) else {}
            known = {path for path, value in lifted.items() if former.get(path) is value}
            for path in paths.keys() & lifted.keys():
                if not (path in known and has_path(root, path)):
                    # The root does not hold it, and so the root's checkpoints do not either.
                    set_path(self, path, lifted[path], persistent=False)
                    del paths[path]
        if not isinstance(root, nn.Module):
            self._take_values(root, paths)
            return
        holders = Holders(self, root)
        asked = [guard.steps[1:] for guard in graph.state_guards if guard.steps[0] == "self"]
        paths.update(dict.fromkeys(_weights_asked(root, asked)))
        missing = holders.take_all(paths)
        if missing is not None:
            raise GraphError(
                f"Cannot make a GraphModule: the graph refers to {missing!r}, which {type(root).__name__} does "
                f"not have. Pass the module that the graph was traced from, or a dict that holds {missing!r}."
            )
        holders.keep_flags(
            [path for *path, name in asked if name == "training"], graph.training_overrides.keys()
        )
        holders.keep_order()

    def _take_values(self, values: Mapping[str, Any], paths: Iterable[str]) -> None:
        for path in paths:
            if path in values:
                set_path(self, path, values[path])
            elif not has_path(self, path):
                raise GraphError(
                    f"Cannot make a GraphModule: the graph refers to {path!r}, which is missing in the given dict. "
                    f"It holds {sorted(values)}."
                )

    # -- program

    forward = cast("Any", _GRAPH_FORWARD)

    @property
    def graph(self) -> Graph:
        """The program; assigning another graph makes this module run it."""
        graph: Graph = self.__dict__["_graph"]
        if graph.owning_module is not self:
            # Several modules may run one graph: it asks the one through which it was reached.
            graph.owning_module = self
            graph.guard_set = self.__dict__.get("_guards")
        return graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        if not isinstance(cast("object", graph), Graph):
            raise InvalidArgumentError(
                f"Cannot set graph to a {type(graph).__name__}: assign a fxplug.Graph.{about_torch_fx(graph)}"
            )
        self._take_over(self, graph)
        self.__dict__["_graph"] = graph
        self.__dict__["_compiled"] = None
        if graph.guard_set is not None and graph.guard_set is not self.guard_set:
            self.__dict__["_guards"] = graph.guard_set.for_another_module()
        graph.owning_module = self

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What the program relies on, as it was found out when it was captured; see `fxplug.trace`."""
        own: GuardSet | None = self.__dict__.get("_guards")
        # Past the properties: each capture asks.
        checked = tuple(
            [
                Guard(str(node.args[-1] if type(node.args[-1]) is str else node.args[-2]))
                for node in self.graph.nodes.listed()
                if node._op == "call_function" and node._target in CHECKS  # pyright: ignore[reportPrivateUsage]
            ]
        )
        training = self.graph.captured_training
        modes = () if training is None else (Guard(f"self.training is {training}"),)
        state = [guard.guard for guard in self.graph.state_guards]
        return (*(() if own is None else own.guards), *checked, *modes, *state)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The guards as text, and what else was assumed when the program was captured."""
        return (*map(str, self.guards), *map(str, self.meta.get("assumptions", ())))

    @property
    def guard_set(self) -> GuardSet | None:
        """The guards that calls check before the program runs, None when there are none."""
        return self.__dict__.get("_guards")

    def set_guards(self, guards: GuardSet | None) -> None:
        """Let calls of this module check guards first; None takes them away."""
        self.__dict__["_guards"] = guards
        self.__dict__["_graph"].guard_set = guards  # Whoever makes another module of it relies on the same.
        if guards is None:
            del self.__dict__["_guards"]

    def _compile(self) -> CompiledFunction:
        state = self.__dict__
        graph: Graph = state["_graph"]
        with paused_collection():
            try:
                code = graph.python_code("self")
            except AttributeError as error:
                # Where an attribute is read, such an error is taken to say that the module has none of this name.
                raise CodegenError(f"Cannot generate code: AttributeError: {error}") from error
            compiled = compile_code(code, name=state["_class_name"], version=graph.version)
        state["_compiled"] = compiled
        return compiled

    @runs_outside_dynamo
    def _refresh_code(self) -> bool:
        """Generate code that is out of date. Dynamo runs this when it meets it, instead of tracing the code generator.

        It is a method as Dynamo runs those for any module; to functions, some versions pass plain values alone.
        """
        _compiled(self)
        return True

    def recompile(self) -> PythonCode:
        """Generate and compile code for the graph as it is now; calls do it by themselves after an edit."""
        return self._compile().code

    @property
    def code(self) -> str:
        """The Python source that runs."""
        return _compiled(self).code.src

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph and the module's hooks. An error gets a note with the node and its line in the program."""
        try:
            # Not by super(), which would be felt in every call.
            return nn.Module.__call__(self, *args, **kwargs)
        except Exception as error:
            if not is_dynamo_compiling():
                state = self.__dict__
                node = note_failed_line(error, state["_compiled"], state["_graph"], self._get_name())
                guards = self.guard_set
                is_said = guards is None or guards.on_failure == "error"
                other = caught_by_program(error, node) if node is not None and is_said else None
                if other is not None:
                    raise other from error
            raise

    def print_readable(
        self,
        print_output: bool = True,  # noqa: FBT001, FBT002 - torch.fx's public signature
        include_stride: bool = False,  # noqa: FBT001, FBT002
        include_device: bool = False,  # noqa: FBT001, FBT002
        colored: bool = False,  # noqa: FBT001, FBT002
        *,
        expanded_def: bool = False,
        additional_meta: Iterable[str] | None = None,
    ) -> str:
        """Return the source as a class, graph modules below this one included, and by default print it too.

        Comments name the lines of the program; values have their types and sizes where they are known (`ShapeProp`).

        Args:
            print_output: Whether it is printed.
            include_stride: Whether sizes are followed by strides.
            include_device: Whether sizes are followed by the device.
            colored: Whether it is colored for a terminal.
            expanded_def: Whether each parameter gets a line of its own.
            additional_meta: Keys of the nodes' notes that comments show.
        """
        style = {
            "include_stride": include_stride,
            "include_device": include_device,
            "colored": colored,
            "expanded_def": expanded_def,
            "additional_meta": tuple(additional_meta or ()),
        }
        text = class_text(self, self._get_name(), style)
        if print_output:
            sys.stdout.write(text)
        return text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str | bytes] | None:
        """Return how a notebook shows this module; None leaves it at the text."""
        bundle = notebook_bundle(self)
        return {"text/plain": str(self), **bundle} if bundle else None

    def _repr_svg_(self) -> str | bytes | None:
        """Return the picture that a plugin makes of this for notebooks; None where no plugin does."""
        return notebook_bundle(self).get("image/svg+xml")

    def _repr_html_(self) -> str | bytes | None:
        """Return the page that a plugin makes of this for notebooks; None where no plugin does."""
        return notebook_bundle(self).get("text/html")

    def to_folder(self, folder: str | os.PathLike[str], module_name: str = "FxModule") -> None:
        """Write a Python package that makes this module again, with torch alone.

        The package has the generated source, and a file of weights and plain values that is loaded with
        ``weights_only=True``: nothing in it is run but the source that can be read there. Submodules are restored from
        their attributes, not by their constructors; their classes and all functions that the program calls must be
        found by an import. Notes (`meta`) and the graph itself are left out; `fxplug.save` keeps them.
        A subclass that changes what a call does is refused.

        Args:
            folder: Is made when it does not exist. Files of the same names in it are replaced.
            module_name: The class that the package defines. Its instances can be put on other devices when they are
                made: ``FxModule(map_location="cpu")``.

        Raises:
            GraphError: Something cannot be written; the message names it. Nothing was written then.

        Example:
            With a folder below the working directory::

                module.to_folder("exported")
                from exported import FxModule
        """
        write_folder(self, GraphModule, folder, module_name)

    # -- training

    def train(self, mode: bool = True) -> GraphModule:  # noqa: FBT001, FBT002 - the signature of torch
        """Switch this module and those below between training and evaluation, as the program that was captured would.

        What its classes say in a ``train`` of their own, such as that a batch norm is never trained, holds here, too.
        """
        super().train(mode)
        for path, flags in self.graph.training_overrides.items():
            held = module_at(self, path)
            if held is not None:
                held.training = flags[0 if mode else 1]
        return self

    # -- submodules

    def add_submodule(self, target: str, m: nn.Module) -> bool:
        """Put a module at a dotted path, making empty modules in between.

        Returns:
            False, with nothing changed, when something that is no module stands in the way.
        """
        holder: Any = self
        for part in target.split(".")[:-1]:
            if hasattr(holder, part) and not isinstance(getattr(holder, part), nn.Module):
                return False
            holder = getattr(holder, part, None)
        set_path(self, target, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Remove the submodule at a dotted path; return whether there was one."""
        return delete_path(self, target)

    def delete_all_unused_submodules(self) -> None:
        """Remove every submodule that no node of the graph reaches."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op not in PATH_OPCODES:
                continue
            parts = str(node.target).split(".")
            used.update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
            if node.op == "call_module":
                used.update(
                    f"{node.target}.{name}" for name, _ in self.get_submodule(node.target).named_modules()
                )
        for name, _ in list(self.named_modules()):
            if name and name not in used:
                delete_path(self, name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a child module.

        Raises:
            GraphError: The name is one of the graph module's own attributes.
        """
        if _is_reserved(type(self), name):
            raise _reserved(name)
        super().add_module(name, module)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "graph":
            object.__setattr__(self, name, value)
            return
        if name in {"code", "guards"} or (
            isinstance(value, (nn.Module, torch.Tensor)) and _is_reserved(type(self), name)
        ):
            raise _reserved(name)
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:  # noqa: FBT001, FBT002
        """Add a buffer.

        Raises:
            GraphError: The name is one of the graph module's own attributes.
        """
        if _is_reserved(type(self), name):
            raise _reserved(name)
        super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter.

        Raises:
            GraphError: The name is one of the graph module's own attributes.
        """
        if _is_reserved(type(self), name):
            raise _reserved(name)
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what TorchScript compiles in this module's place.

        TorchScript caches by class, so each module is handed over as the only instance of a class of its own, which
        holds the generated function and nothing that TorchScript does not need.

        Raises:
            GraphError: A subclass changes what a call does, of which the generated function knows nothing; or the
                program relies on something that TorchScript would not check.
        """
        own = overriding_class(self, GraphModule)
        if own is not None:
            raise GraphError(
                f"Cannot script {self._get_name()!r}: its class {own.__module__}.{own.__qualname__} has a forward or "
                f"__call__ of its own, and TorchScript would take the graph alone. Make that a part of the graph, or "
                "script a fxplug.GraphModule of the same graph inside a module that does the rest."
            )
        compiled = _compiled(self)
        forward = scripted_forward(self, compiled.code, compiled.function)
        kind = type(self._get_name(), (nn.Module,), {"forward": forward})
        stand_in = kind.__new__(kind)
        own = {"_graph", "_guards", "_compiled", "_class_name", "meta"}
        stand_in.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        stand_in.__dict__["_modules"] = modules_apart(self)
        return stand_in

    # -- copies

    def _get_name(self) -> str:
        return self.__dict__.get("_class_name", type(self).__name__)

    def __copy__(self) -> GraphModule:
        """Return a module that shares graph and values but has its own tables, of submodules as of hooks."""
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)
        for name in _TABLES & self.__dict__.keys():
            other.__dict__[name] = copy.copy(self.__dict__[name])
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        for name, value in self.__dict__.items():
            other.__dict__[name] = None if name == "_compiled" else copy.deepcopy(value, memo)
        other.graph.owning_module = other
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.graph.owning_module = self

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.code}"


# All graph modules have this method, and Dynamo compiles the code of one function for a few objects alone: what it
# compiles is the generated code, of which each module has its own.
skip_frame(GraphModule.__call__.__code__)

_TABLES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))) | {
    "meta"
}
"""What a module holds in tables: parameters, buffers, submodules, hooks; and its notes."""

RESERVED_ATTRIBUTES = frozenset(
    name for name in vars(GraphModule) if not name.startswith("__") and not hasattr(nn.Module, name)
) | {"_class_name", "_compiled", "_graph", "_guards", "meta"}
"""Names that a submodule, parameter or buffer of a graph module may not take."""


def _weights_asked(root: nn.Module, asked: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the paths of the weights of `root` that a program has asked about."""
    found = [path for *path, name in asked if name != "training" and tensor_at(root, path) is not None]
    return [".".join(path) for path in found]


def _check_parts(root: Any, graph: Any) -> None:
    """Refuse what no graph module can be made of.

    Raises:
        InvalidArgumentError: The root is neither a module nor a dict, or the graph is none.
    """
    if not isinstance(graph, Graph):
        own = " Pass its graph." if isinstance(graph, GraphModule) else ""
        raise InvalidArgumentError(f"Cannot make a GraphModule: the graph is {not_a_graph(graph)}{own}")
    if not isinstance(root, (nn.Module, Mapping)):
        raise InvalidArgumentError(
            f"Cannot make a GraphModule: the root is a {type(root).__name__}. Pass the module that the graph was "
            "traced from, or a dict from path to value."
        )


def _is_reserved(kind: type[GraphModule], name: str) -> bool:
    """Return whether an attribute of that name would be hidden by what the class has under it, or would hide it."""
    if name in RESERVED_ATTRIBUTES:
        return True
    return kind is not GraphModule and hasattr(kind, name) and not hasattr(nn.Module, name)


def _reserved(name: str) -> GraphError:
    return GraphError(
        f"Cannot use {name!r} as the name of a submodule, parameter or buffer: a GraphModule needs it "
        "itself. Rename the attribute in the model, or make the enclosing module a leaf.",
        code="FXP-G010",
    )
