"""Every hook of fxplug, declared: the whole extension surface.

A plugin is a module, named by an entry point of group ``fxplug``, whose functions carry `fxplug.hookimpl` and
have the name of a hook below. An implementation takes the arguments it needs, by name and without defaults.
Hooks return values; they never change what they are handed.

**Order.** Implementations marked ``tryfirst`` come first, those marked ``trylast`` come last; among equals
the order is that of the plugins: by name, as far as ``PLUGIN_BEFORE`` and ``PLUGIN_AFTER`` (lists of plugin
or distribution names in the entry module) do not say otherwise. In which order plugins were installed never
matters.

**Errors.** What an implementation raises while it is registering makes the host skip the plugin. What it
raises while it answers a question of a trace ends the trace with a `PluginError` that names distribution,
version and hook. What an observer raises is a `PluginWarning` (strict: an error).

A hook that no active plugin implements costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.plugins.markers import hookspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from fxplug.capture import TraceContext, TraceEvent
    from fxplug.ir import Node
    from fxplug.lower import BackendRecord
    from fxplug.passes import PassEvent, PassRecord
    from fxplug.plugins.records import CommandRecord, EffectRecord

__all__ = [
    "fxplug_create_argument",
    "fxplug_create_proxy",
    "fxplug_is_leaf_module",
    "fxplug_leaf_functions",
    "fxplug_node_created",
    "fxplug_pass_finished",
    "fxplug_pass_started",
    "fxplug_register_backends",
    "fxplug_register_commands",
    "fxplug_register_effects",
    "fxplug_register_passes",
    "fxplug_trace_finished",
    "fxplug_trace_started",
    "fxplug_unwrap_module",
]

# -- questions of a trace ------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def fxplug_is_leaf_module(module: nn.Module, qualified_name: str, context: TraceContext) -> bool | None:
    """Say whether a module stays one node of the graph.

    Asked whenever a submodule is called during a trace, before the tracer's own rule (the classes of
    ``torch.nn`` are leaves, except containers). The globs ``trace.through_modules`` and
    ``trace.leaf_modules`` of the configuration are the user's own word and are asked earlier.

    Args:
        module: The module that is called.
        qualified_name: Its dotted path below the root.
        context: What is being traced.

    Returns:
        True: it becomes one ``call_module`` node. False: its forward is traced. None: no opinion, the next
            plugin is
        asked. The first answer counts.

    Example:
        ::

            @hookimpl
            def fxplug_is_leaf_module(module):
                return True if type(module).__name__ == "Attention" else None
    """


@hookspec
def fxplug_create_proxy(node: Node, kind: str, context: TraceContext) -> type | None:
    """Mix behaviour into the proxy that stands for a new node.

    Asked for every proxy that a trace makes. All answers are collected: the proxy's class derives from every
    mixin, in order, and from fxplug's own proxy last. So plugins add to each other, and none replaces what a
    proxy does; a mixin that overrides a method calls ``super()``. Return the same class each time, a new one
    per node is slow.

    Args:
        node: The node that the proxy will stand for.
        kind: What is known about the kind of value that the node gives.
        context: What is being traced.

    Returns:
        A plain class (not derived from ``Proxy``), or None to add nothing.

    Example:
        ::

            class Watched:
                def __mul__(self, other):
                    log.append(self.node.name)
                    return super().__mul__(other)

            @hookimpl
            def fxplug_create_proxy(node):
                return Watched
    """


@hookspec
def fxplug_node_created(node: Node, context: TraceContext) -> Mapping[str, Any] | None:
    """Annotate a freshly traced node.

    Asked for every node that a trace records, when its target, arguments and origin are set. Must not change
    the node.

    Args:
        node: The new node.
        context: What is being traced.

    Returns:
        Notes that are added to ``node.meta``, or None. All answers are collected; where two plugins use one
        key, the first in order has the say. Begin keys with the plugin's name: ``"sample.note"``.

    Example:
        ::

            @hookimpl
            def fxplug_node_created(node):
                return {"sample.opcode": node.op}
    """


@hookspec(firstresult=True)
def fxplug_create_argument(value: Any, context: TraceContext) -> Any:
    """Turn a value of a foreign type into an argument of the graph.

    Asked when a traced call receives a value that no graph can hold, before the tracer gives up.

    Args:
        value: The value.
        context: What is being traced.

    Returns:
        A value that a graph can hold, or that can be converted further: tensors, proxies, plain values,
        containers of them. None: no opinion, the next plugin is asked. The first answer counts. Returning
        `value` itself is an error.

    Example:
        ::

            @hookimpl
            def fxplug_create_argument(value):
                return tuple(value.sizes) if isinstance(value, Window) else None
    """


@hookspec(firstresult=True)
def fxplug_unwrap_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper, so that the wrapped one is traced.

    Asked about the root before it is traced, again and again until nobody answers.

    Args:
        module: A module that may be a wrapper.

    Returns:
        The module inside; None when `module` is no wrapper that this plugin knows. The first answer counts.

    Example:
        ::

            @hookimpl
            def fxplug_unwrap_module(module):
                return module.inner if isinstance(module, Sharded) else None
    """


@hookspec
def fxplug_leaf_functions() -> Iterable[Callable[..., Any]] | None:
    """Name functions that stay calls.

    Asked once when a trace starts. A call of such a function is recorded as one ``call_function`` node if a
    traced value is among its arguments, wherever the function is called from, as if it had been passed to
    ``fxplug.wrap``.

    Returns:
        The functions, or None for none. All answers are collected. Import nothing for it: a function of a
        library that is not loaded is not called either, so look for the library in ``sys.modules``.

    Example:
        ::

            @hookimpl
            def fxplug_leaf_functions():
                ops = sys.modules.get("mypkg.ops")
                return None if ops is None else [ops.resample]
    """


# -- offers --------------------------------------------------------------------------------------------------


@hookspec
def fxplug_register_passes() -> Iterable[PassRecord] | None:
    """Offer passes.

    Asked once, when the plugin is loaded. The pass ``static-int8`` of plugin ``quant`` is called
    ``quant:static-int8``; the short name works while no other plugin offers it.

    Returns:
        Records, or None for none. What is heavy is imported in their factories. Where a pass stands in a
        pipeline is declared in its
        record: ``phase``, then ``before`` and ``after`` by name.

    Example:
        ::

            @hookimpl
            def fxplug_register_passes():
                return [PassRecord("count-nodes", make_count_nodes, "Counts the nodes.")]
    """


@hookspec
def fxplug_register_backends() -> Iterable[BackendRecord] | None:
    """Offer backends.

    Asked once, when the plugin is loaded. Names work as those of passes do.

    Returns:
        Records, or None for none. A factory works without the engine being installed: the backend says what
        is missing when it is asked.

    Example:
        ::

            @hookimpl
            def fxplug_register_backends():
                return [BackendRecord("mine", make_backend, "Runs graphs on my engine.")]
    """


@hookspec
def fxplug_register_effects() -> Iterable[EffectRecord] | None:
    """State what calls do besides computing their value: write, draw random numbers, act outside.

    Asked once, when the plugin is loaded. Passes remove, merge and move only what is known to allow it.

    Returns:
        Records, or None for none. A record prevails over what fxplug says about the same target; what several
        plugins say about one target is joined, so that each is respected.

    Example:
        ::

            @hookimpl
            def fxplug_register_effects():
                return [EffectRecord(log_value, OUTSIDE)]
    """


@hookspec
def fxplug_register_commands() -> Iterable[CommandRecord] | None:
    """Offer subcommands of ``fxplug``.

    Asked once, when the plugin is loaded; a command itself is made when it is called or when help is shown.

    Returns:
        Records, or None for none.

    Example:
        ::

            @hookimpl
            def fxplug_register_commands():
                return [CommandRecord("draw", make_draw_command, "Draws a graph.")]
    """


# -- observers -----------------------------------------------------------------------------------------------


@hookspec
def fxplug_trace_started(event: TraceEvent) -> None:
    """Hear that a trace starts.

    Args:
        event: What is traced.

    Example:
        ::

            @hookimpl
            def fxplug_trace_started(event):
                logger.info("tracing %s", type(event.context.root).__name__)
    """


@hookspec
def fxplug_trace_finished(event: TraceEvent) -> None:
    """Hear that a trace has ended, well or not.

    Args:
        event: The graph or the error, and how long it took. The graph is not to be changed here: that is what
            passes are for.

    Example:
        ::

            @hookimpl
            def fxplug_trace_finished(event):
                logger.info("traced in %.3f s", event.seconds)
    """


@hookspec
def fxplug_pass_started(event: PassEvent) -> None:
    """Hear that a pass of a pipeline starts.

    Args:
        event: Which pass, and the module as it is before.

    Example:
        ::

            @hookimpl
            def fxplug_pass_started(event):
                logger.info("%d/%d %s", event.index + 1, event.total, event.name)
    """


@hookspec
def fxplug_pass_finished(event: PassEvent) -> None:
    """Hear that a pass of a pipeline has ended, well or not.

    Args:
        event: What it did or why it failed, and how long it took. After a failure the module is as before the
            pass.

    Example:
        ::

            @hookimpl
            def fxplug_pass_finished(event):
                logger.info("%s: %s", event.name, event.result or event.error)
    """
