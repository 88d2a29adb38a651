"""Capturing a program with whatever the installed plugins have to say about it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fxplug.api.capturing import (
    CaptureOptions,
    as_args,
    as_kwargs,
    capture,
    check_options,
    install_policy,
    traced,
    unwrapped,
)
from fxplug.capture import Tracer
from fxplug.ir.collector import paused_collection
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.plugins import TraceConfig

__all__ = ["chosen_options", "symbolic_trace", "trace", "trace_symbolically"]


def symbolic_trace(
    root: nn.Module | Callable[..., Any],
    concrete_args: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Capture a module or function without running it on data.

    Leaf rules, proxies, node annotations and wrappers of the active plugins take part, and of the configuration
    (table ``trace``) leaf rules and `on_mutation`. Parameters, buffers and leaf modules are shared with `root`, not
    copied.

    Args:
        root: A module, whose forward is traced, or a function.
        concrete_args: Parameter name -> value to be used instead of a proxy, or one for each parameter in order;
            `fxplug.PH` stands for what stays an input, also inside lists, dicts and the like.
        manager: The plugins that take part; by default those that are installed and selected.

    Returns:
        A module that computes what `root` computes, named after it.

    Raises:
        TraceError: The program asks something that cannot be answered without inputs; the message shows its
            line.

    Example:
        ::

            import fxplug as fx

            graph_module = fx.symbolic_trace(model)
            print(graph_module.code)
    """
    return trace_symbolically(root, concrete_args, default_manager() if manager is None else manager)


def trace_symbolically(
    root: nn.Module | Callable[..., Any],
    concrete_args: Mapping[str, Any] | Sequence[Any] | None,
    plugins: PluginManager,
    *,
    takes_defaults: bool = True,
) -> GraphModule:
    """Do what `symbolic_trace` does; without `takes_defaults`, all inputs may have any value (see `Tracer`)."""
    policy = plugins.trace_policy()
    program = unwrapped(root, policy.unwrap_module)

    def make() -> Tracer:
        tracer = Tracer(policy=policy)
        tracer.on_mutation = plugins.config.trace.on_mutation
        tracer.takes_defaults = takes_defaults
        return tracer

    return traced(make, program, concrete_args)


def trace(  # noqa: PLR0913 - one front door with many switches
    root: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    mode: str | None = None,
    check: bool | None = None,
    on_error: str | None = None,
    on_mutation: str | None = None,
    on_guard_failure: str | None = None,
    autowrap: bool | None = None,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Capture a module or function; with example inputs, nearly every program.

    With example inputs the program runs on them while it is captured, so that each question that Python asks gets its
    true answer. What was asked is kept as guards (`GraphModule.guards`): a call whose inputs would have given another
    answer does not run the wrong way. Sizes and numbers that take part in the computation stay free.

    What is not said here the configuration says: its table ``trace`` has keys of the names of the arguments from `mode`
    to `autowrap`, with the defaults that are named below. Its leaf rules (``leaf_modules``, ``through_modules``,
    ``leaf_functions``) are no arguments: `manager` may have a configuration of its own.

    Args:
        root: A module, whose forward is captured, or a function.
        example_inputs: Positional inputs of one call, as a tuple or list, or a single tensor.
        example_kwargs: Keyword inputs.
        mode: ``"value"`` (the default with example inputs) runs the program on them; ``"shape"`` runs it on tensors
            with their sizes, dtypes and devices but without data, so that questions about values are errors;
            ``"symbolic"`` (the default without) runs it on proxies, as `symbolic_trace` does.
        check: Whether what was captured is run on the examples, too, and compared with the program: results, changed
            inputs and buffers, gradients. By default it is. Without data (meta tensors) nothing can be compared.
        on_error: ``"raise"`` (the default), or ``"collect"`` to go on behind a question that cannot be answered, where
            that is possible, and raise one error with all of them.
        on_mutation: What happens when the program assigns attributes of modules while it is captured, which the
            captured program does not do: ``"keep"`` (the default) puts them back and warns, ``"error"`` raises.
        on_guard_failure: What a call does when a guard does not hold: ``"error"`` (the default) raises `GuardError`,
            ``"warn"`` warns and runs the captured program all the same, ``"eager"`` runs the original, ``"recapture"``
            captures it again for these inputs (up to eight captures are kept), ``"ignore"`` checks no guards before the
            program runs.
        autowrap: Whether a function that cannot be captured stays one call. Of the functions around the line in
            question it is the innermost that a graph can call: one that is found by its name, of a module or of a
            class. `GraphModule.assumptions` names it. By default it does not.
        manager: The plugins that take part; by default those that are installed and selected.

    Returns:
        A module that computes what `root` computes, named after it.

    Raises:
        TraceError: The program cannot be captured; the message shows its line.
        MismatchError: What was captured does something else than the program.

    Example:
        ::

            import fxplug

            captured = fxplug.trace(model, (images,))
            for guard in captured.guards:
                print(guard)
    """
    args = as_args(example_inputs)
    has_examples = example_inputs is not None or example_kwargs is not None
    plugins = default_manager() if manager is None else manager
    given = {
        "mode": mode,
        "check": check,
        "on_error": on_error,
        "on_mutation": on_mutation,
        "on_guard_failure": on_guard_failure,
        "autowrap": autowrap,
    }
    chosen = chosen_options(given, plugins.config.trace, has_examples=has_examples)
    on_failure = chosen.pop("on_guard_failure")
    options = CaptureOptions(**chosen, manager=plugins, fills_caches=on_failure == "error")
    # What a check runs may need the collector.
    with nullcontext() if options.check else paused_collection():
        captured = capture(root, args, as_kwargs(example_kwargs), options)
        install_policy(captured, root, options, on_failure)
        return captured


def chosen_options(given: Mapping[str, Any], settings: TraceConfig, *, has_examples: bool) -> dict[str, Any]:
    """Return the options of a capture: those given, and where they are None those of the configuration.

    Args:
        given: Values by the names of the arguments of `trace`.
        settings: Of the configuration. A mode that needs example inputs counts where there are some.
        has_examples: Whether there are.

    Raises:
        TraceError: An option has a value that does not exist, or the mode needs example inputs.
    """
    chosen = {name: getattr(settings, name) if value is None else value for name, value in given.items()}
    if chosen["mode"] is None or (given["mode"] is None and not has_examples):
        chosen["mode"] = "value" if has_examples else "symbolic"
    names = ("mode", "on_error", "on_mutation", "on_guard_failure")
    check_options({name: chosen[name] for name in names if name in chosen}, has_examples)
    return chosen
