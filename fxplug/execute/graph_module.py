"""A module whose forward is a graph."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.codegen import CompiledFunction, compile_code
from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.execute.paths import copy_path, delete_path, has_path, set_path
from fxplug.ir import Graph, PythonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RESERVED_ATTRIBUTES", "GraphModule"]

RESERVED_ATTRIBUTES = frozenset(
    {
        "_class_name",
        "_compile",
        "_compiled",
        "_graph",
        "_take_over",
        "add_submodule",
        "code",
        "delete_all_unused_submodules",
        "delete_submodule",
        "graph",
        "guards",
        "meta",
        "print_readable",
        "recompile",
    }
)
"""Names that a submodule, parameter or buffer of a graph module may not take."""


class _Forward:
    """Binds the compiled graph at the moment of access, so that an edited graph never runs old code.

    Nothing bound is kept on the instance: it would survive `copy.copy` tied to the wrong module, and make a
    reference cycle that keeps weights alive.
    """

    def __get__(self, instance: GraphModule | None, owner: type[GraphModule]) -> Any:
        if instance is None:
            return self
        state = instance.__dict__
        compiled: CompiledFunction | None = state["_compiled"]
        if compiled is None or compiled.version != state["_graph"].version:
            compiled = instance._compile()  # pyright: ignore[reportPrivateUsage] - one class in two parts
        return compiled.function.__get__(instance)


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
    """

    meta: dict[str, Any]
    """Free notes about the module; copied with it."""

    def __init__(
        self, root: nn.Module | Mapping[str, Any], graph: Graph, class_name: str = "GraphModule"
    ) -> None:
        super().__init__()
        state = self.__dict__
        state["_graph"] = graph
        state["_compiled"] = None
        state["_class_name"] = class_name
        state["meta"] = {}
        if isinstance(root, nn.Module):
            self.training = root.training
            if isinstance(root, GraphModule):
                state["meta"] = dict(root.meta)
        self._take_over(root, graph)
        if graph.owning_module is None:
            graph.owning_module = self

    def _take_over(self, root: nn.Module | Mapping[str, Any], graph: Graph) -> None:
        """Let this module hold what the graph's paths name: the very objects of the root, nothing duplicated."""
        paths = dict.fromkeys(node.target for node in graph.nodes if node.op in {"get_attr", "call_module"})
        holders: dict[str, tuple[Any, Any]] = {"": (self, root)}
        # A module that runs the same constants already may have moved or converted them; its are the current ones.
        lifted = root.graph.lifted if isinstance(root, GraphModule) else {}
        known = {path for path, value in graph.lifted.items() if lifted.get(path) is value}
        for path in paths:
            top = path.partition(".")[0]
            if top in RESERVED_ATTRIBUTES:
                raise _reserved(top)
            if path in graph.lifted and not (path in known and has_path(root, path)):
                # The root does not hold it, and so the root's checkpoints do not either.
                set_path(self, path, graph.lifted[path], persistent=False)
            elif isinstance(root, nn.Module):
                if not copy_path(path, holders):
                    raise GraphError(
                        f"Cannot make a GraphModule: the graph refers to {path!r}, which {type(root).__name__} does "
                        f"not have. Pass the module that the graph was traced from, or a dict that holds {path!r}."
                    )
            elif path in root:
                set_path(self, path, root[path])
            elif not has_path(self, path):
                raise GraphError(
                    f"Cannot make a GraphModule: the graph refers to {path!r}, which is missing in the given dict. "
                    f"It holds {sorted(root)}."
                )

    # -- program

    forward = cast("Any", _Forward())

    @property
    def graph(self) -> Graph:
        """The program; assigning another graph makes this module run it."""
        return self.__dict__["_graph"]

    @graph.setter
    def graph(self, graph: Graph) -> None:
        if not isinstance(cast("object", graph), Graph):
            raise InvalidArgumentError(
                f"Cannot set graph to a {type(graph).__name__}: assign a fxplug.Graph."
            )
        self._take_over(self, graph)
        self.__dict__["_graph"] = graph
        self.__dict__["_compiled"] = None
        graph.owning_module = self

    def _compile(self) -> CompiledFunction:
        state = self.__dict__
        graph: Graph = state["_graph"]
        compiled = compile_code(graph.python_code("self"), name=state["_class_name"], version=graph.version)
        state["_compiled"] = compiled
        return compiled

    def recompile(self) -> PythonCode:
        """Generate and compile code for the graph as it is now; calls do it by themselves after an edit."""
        return self._compile().code

    @property
    def code(self) -> str:
        """The Python source that runs."""
        compiled: CompiledFunction | None = self.__dict__["_compiled"]
        if compiled is None or compiled.version != self.graph.version:
            compiled = self._compile()
        return compiled.code.src

    def print_readable(self, print_output: bool = True) -> str:  # noqa: FBT001, FBT002 - torch.fx's public signature
        """Return the source as a class, and by default print it too."""
        body = "\n".join("    " + line if line else "" for line in self.code.splitlines())
        text = f"class {self._get_name()}(torch.nn.Module):\n{body}\n"
        if print_output:
            sys.stdout.write(text)
        return text

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
            if node.op not in {"get_attr", "call_module"}:
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
        if name in RESERVED_ATTRIBUTES:
            raise _reserved(name)
        super().add_module(name, module)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "graph":
            object.__setattr__(self, name, value)
            return
        if name in RESERVED_ATTRIBUTES and (
            isinstance(value, (nn.Module, torch.Tensor)) or name in {"code", "guards"}
        ):
            raise _reserved(name)
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:  # noqa: FBT001, FBT002
        """Add a buffer.

        Raises:
            GraphError: The name is one of the graph module's own attributes.
        """
        if name in RESERVED_ATTRIBUTES:
            raise _reserved(name)
        super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter.

        Raises:
            GraphError: The name is one of the graph module's own attributes.
        """
        if name in RESERVED_ATTRIBUTES:
            raise _reserved(name)
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what TorchScript compiles in this module's place.

        TorchScript caches by class, so each module is handed over as the only instance of a class of its own, which
        holds the generated function and nothing that TorchScript does not need.
        """
        compiled = self.__dict__["_compiled"]
        if compiled is None or compiled.version != self.graph.version:
            compiled = self._compile()
        kind = type(self._get_name(), (nn.Module,), {"forward": compiled.function})
        stand_in = kind.__new__(kind)
        own = {"_graph", "_compiled", "_class_name", "meta"}
        stand_in.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        return stand_in

    # -- copies

    def _get_name(self) -> str:
        return self.__dict__.get("_class_name", type(self).__name__)

    def __copy__(self) -> GraphModule:
        """Return a module that shares graph and values but has its own tables of parameters, buffers and submodules."""
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)
        for name in ("_parameters", "_buffers", "_modules"):
            other.__dict__[name] = self.__dict__[name].copy()
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


def _reserved(name: str) -> GraphError:
    return GraphError(
        f"Cannot use {name!r} as the name of a submodule, parameter or buffer: a GraphModule needs it "
        "itself. Rename the attribute in the model, or make the enclosing module a leaf.",
        code="FXP-G010",
    )
