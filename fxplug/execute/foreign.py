"""What to say of a graph that is none of fxplug."""

from __future__ import annotations

__all__ = ["about_torch_fx", "not_a_graph"]


def not_a_graph(value: object) -> str:
    """Return what a value is in place of a graph, as the end of a sentence, and what to do where torch.fx made it."""
    kind = type(value)
    name = "None" if value is None else f"a {kind.__module__}.{kind.__qualname__}"
    return f"{name}, and no fxplug.Graph.{about_torch_fx(value)}"


def about_torch_fx(value: object) -> str:
    """Return a sentence on what to do with a graph or module of torch.fx, with a space; nothing for anything else."""
    if not str(type(value).__module__).startswith("torch.fx."):
        return ""
    return (
        " fxplug does not run graphs of torch.fx: capture the module that has it with fxplug.symbolic_trace(module), "
        "and use what that returns."
    )
