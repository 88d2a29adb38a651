"""Every hook of fxplug, declared: the whole extension surface.

A plugin is a module, named by an entry point of group ``fxplug``, whose functions carry `fxplug.hookimpl` and
have the name of a hook below. An implementation takes the arguments it needs, by name and without defaults.
Hooks return values; they never change what they are handed.

**Order.** Implementations marked ``tryfirst`` come first, those marked ``trylast`` come last; among equals
the order is that of the plugins: by name, as far as ``PLUGIN_BEFORE`` and ``PLUGIN_AFTER`` (lists of plugin
or distribution names in the entry module) do not say otherwise. In which order plugins were installed never
matters. What fxplug itself says through these hooks comes behind whatever plugins say.

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
    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.lower import BackendRecord
    from fxplug.passes import PassEvent, PassRecord
    from fxplug.plugins.records import (
        CommandRecord,
        ConstantRecord,
        DecompositionRecord,
        DeviceRecord,
        EffectRecord,
        FlopFormulaRecord,
        ReportSectionRecord,
        StorageTargetRecord,
    )

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
    "fxplug_register_constants",
    "fxplug_register_decompositions",
    "fxplug_register_devices",
    "fxplug_register_effects",
    "fxplug_register_flop_formulas",
    "fxplug_register_passes",
    "fxplug_register_report_sections",
    "fxplug_register_storage_targets",
    "fxplug_represent",
    "fxplug_trace_finished",
    "fxplug_trace_started",
    "fxplug_unwrap_module",
]

# -- questions of a trace ------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def fxplug_is_leaf_module(module: nn.Module, qualified_name: str, context: TraceContext) -> bool | None:
    """Say whether a module stays one node of the graph.

    When:
        Whenever a submodule is called during a trace. The globs ``trace.through_modules`` and
        ``trace.leaf_modules`` of the configuration are the user's own word and are asked earlier; fxplug's own
        rule (the classes of ``torch.nn`` are leaves, except containers) is asked when no plugin has an answer.

    Args:
        module: The module that is called.
        qualified_name: Its dotted path below the root.
        context: What is being traced.

    Returns:
        True: it becomes one ``call_module`` node. False: its forward is traced. None: no opinion, the next
            plugin is asked. The first answer counts.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``; fxplug's own rule last of all.

    Errors:
        An error, or another answer, ends the trace with a `PluginError` that names the distribution.

    Example:
        ::

            from fxplug import hookimpl


            @hookimpl
            def fxplug_is_leaf_module(module):
                return True if type(module).__name__ == "Attention" else None
    """


@hookspec(
    warn_on_impl_args={
        "node": DeprecationWarning(
            "The argument node of fxplug_create_proxy goes away in fxplug 0.2: with it, every node of a trace is asked "
            "about. Leave it out, and let the methods of the class look at self.node."
        )
    }
)
def fxplug_create_proxy(node: Node, kind: str, context: TraceContext) -> type | None:
    """Mix behaviour into the proxies that stand for the values of a trace.

    When:
        Once per trace and kind, when the trace starts, so that it costs a trace next to nothing. A trace with example
        inputs (modes ``"value"`` and ``"shape"``) runs on tensors themselves and makes no proxies.

    Args:
        node: Deprecated. Who takes it is asked for every proxy, with the node that it will stand for. A method of
            the class finds the same node in ``self.node``.
        kind: What is known about the kind of value that the proxies stand for.
        context: What is being traced.

    Returns:
        A plain class (not derived from ``Proxy``), or None to add nothing. All answers are collected: the proxy's
            class derives from every mixin and from fxplug's own proxy last. So plugins add to each other, and none
            replaces what a proxy does; a mixin that overrides a method calls ``super()``.

    Order:
        The mixin of the plugin that comes first stands first among the bases of the class.

    Errors:
        An error, or mixins that Python cannot combine, end the trace with a `PluginError` that names the
        distribution.

    Example:
        ::

            from fxplug import hookimpl

            MULTIPLIED = []


            class Watched:
                def __mul__(self, other):
                    MULTIPLIED.append(self.node.name)
                    return super().__mul__(other)


            @hookimpl
            def fxplug_create_proxy():
                return Watched
    """


@hookspec
def fxplug_node_created(node: Node, context: TraceContext) -> Mapping[str, Any] | None:
    """Annotate a freshly traced node.

    When:
        For every node that a trace records, when its target, arguments and origin are set.

    Args:
        node: The new node. It must not be changed.
        context: What is being traced.

    Returns:
        Notes that are added to ``node.meta``, or None for none. All answers are collected. Begin keys with the
            plugin's name: ``"sample.note"``.

    Order:
        Where two plugins use one key, the first in order has the say.

    Errors:
        An error, or an answer that is no mapping, ends the trace with a `PluginError` that names the distribution.

    Example:
        ::

            from fxplug import hookimpl


            @hookimpl
            def fxplug_node_created(node):
                return {"sample.opcode": node.op}
    """


@hookspec(firstresult=True)
def fxplug_create_argument(value: Any, context: TraceContext) -> Any:
    """Turn a value of a foreign type into an argument of the graph.

    When:
        When a traced call receives a value that no graph can hold, before the tracer gives up.

    Args:
        value: The value.
        context: What is being traced.

    Returns:
        A value that a graph can hold, or that can be converted further: tensors, proxies, plain values,
            containers of them. None: no opinion, the next plugin is asked. The first answer counts. Returning
            `value` itself is an error.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. Types of `fxplug_register_constants` are not asked about.

    Errors:
        An error ends the trace with a `PluginError` that names the distribution; so does returning `value`.

    Example:
        ::

            from fxplug import hookimpl


            class Window:
                def __init__(self, *sizes):
                    self.sizes = sizes


            @hookimpl
            def fxplug_create_argument(value):
                return tuple(value.sizes) if isinstance(value, Window) else None
    """


@hookspec(firstresult=True)
def fxplug_unwrap_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper, so that the wrapped one is traced.

    When:
        About the root before it is traced, again and again until nobody answers; and about the modules that are
        called during the trace, where layers that ``torch.nn`` ships may be left out.

    Args:
        module: A module that may be a wrapper.

    Returns:
        The module inside; None when `module` is no wrapper that this plugin knows. The first answer counts.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. Wrappers of torch are known to fxplug itself.

    Errors:
        An error, or an answer that is no other module, ends the trace with a `PluginError` that names the
        distribution.

    Example:
        ::

            from torch import nn

            from fxplug import hookimpl


            class Sharded(nn.Module):
                def __init__(self, inner):
                    super().__init__()
                    self.inner = inner


            @hookimpl
            def fxplug_unwrap_module(module):
                return module.inner if isinstance(module, Sharded) else None
    """


@hookspec
def fxplug_leaf_functions() -> Iterable[Callable[..., Any]] | None:
    """Name functions that stay calls.

    When:
        Once when a trace starts. A call of such a function is recorded as one ``call_function`` node if a traced
        value is among its arguments, wherever the function is called from, as if it had been passed to
        ``fxplug.wrap``.

    Returns:
        The functions, or None for none. All answers are collected. Import nothing for it: a function of a
            library that is not loaded is not called either, so look for the library in ``sys.modules``.

    Order:
        Makes no difference.

    Errors:
        An error, or an answer that holds something else than functions, ends the trace with a `PluginError` that
        names the distribution.

    Example:
        ::

            import sys

            from fxplug import hookimpl


            @hookimpl
            def fxplug_leaf_functions():
                statistics = sys.modules.get("statistics")
                return None if statistics is None else [statistics.mean]
    """


# -- offers --------------------------------------------------------------------------------------------------


@hookspec
def fxplug_register_passes() -> Iterable[PassRecord] | None:
    """Offer passes.

    When:
        Once, when the plugin is loaded. The pass ``static-int8`` of plugin ``quant`` is called
        ``quant:static-int8``; the short name works while no other plugin offers it.

    Returns:
        Records, or None for none. All are collected. What is heavy is imported in their factories.

    Order:
        Where a pass stands in a pipeline is declared in its record: ``phase``, then ``before`` and ``after`` by name.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A factory that fails is a
        `PluginError` where the pass is asked for.

    Example:
        ::

            from fxplug import Pass, PassRecord, PassResult, hookimpl


            class CountNodes(Pass):
                def run(self, module, context):
                    return PassResult(modified=False, summary=f"{len(module.graph.nodes)} nodes")


            @hookimpl
            def fxplug_register_passes():
                return [PassRecord("count-nodes", CountNodes, "Counts the nodes.")]
    """


@hookspec
def fxplug_register_backends() -> Iterable[BackendRecord] | None:
    """Offer backends.

    When:
        Once, when the plugin is loaded. Names work as those of passes do.

    Returns:
        Records, or None for none. All are collected. A factory works without the engine being installed: the
            backend says what is missing when it is asked.

    Order:
        Makes no difference: a backend is asked for by name.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A factory that fails is a
        `PluginError` where the backend is asked for.

    Example:
        ::

            from fxplug import Backend, BackendRecord, Support, hookimpl


            class Additions(Backend):
                def supports(self, node, context):
                    return Support(getattr(node.target, "__name__", "") == "add", "this engine only adds")

                def compile(self, subgraph, example_inputs, options):
                    return subgraph


            @hookimpl
            def fxplug_register_backends():
                return [BackendRecord("additions", Additions, "Runs additions.")]
    """


@hookspec
def fxplug_register_commands() -> Iterable[CommandRecord] | None:
    """Offer subcommands of ``fxplug``.

    When:
        Once, when the plugin is loaded; a command itself is made when it is called or when help is shown.

    Returns:
        Records, or None for none. All are collected. Names work as those of passes do.

    Order:
        Makes no difference: a command is called by name.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A factory that fails is shown as
        an error of the command.

    Example:
        ::

            from fxplug import CommandRecord, hookimpl


            def make_hello():
                import click

                return click.Command("hello", callback=lambda: click.echo("Hello."))


            @hookimpl
            def fxplug_register_commands():
                return [CommandRecord("hello", make_hello, "Says hello.")]
    """


@hookspec
def fxplug_register_devices() -> Iterable[DeviceRecord] | None:
    """Describe devices by figures, so that the time of a program on them can be estimated.

    When:
        Once, when the plugin is loaded. The device ``npu`` of plugin ``acme`` is called ``acme:npu``; the short name
        works while no other plugin describes one. `fxplug.estimate` uses the figures.

    Returns:
        Records, or None for none. All are collected. A multiply-add is two of the operations that data sheets count.

    Order:
        Makes no difference: a device is asked for by name.

    Errors:
        An error, or a figure that is no number above zero, makes the host skip the plugin.

    Example:
        ::

            from fxplug import DeviceRecord, hookimpl


            @hookimpl
            def fxplug_register_devices():
                return [
                    DeviceRecord(
                        "npu",
                        multiply_adds_per_second={"float32": 1e12, "int8": 8e12},
                        bytes_per_second=1e11,
                        memory_bytes=8 * 10**9,
                        summary="A device made up for this example.",
                    )
                ]
    """


@hookspec
def fxplug_register_report_sections() -> Iterable[ReportSectionRecord] | None:
    """Add sections to the report that ``fxplug optimize`` writes.

    When:
        Once, when the plugin is loaded; a section itself is made when a report is written.

    Returns:
        Records, or None for none. All are collected. The factory of a record takes a ``ReportContext`` and returns
            Markdown, or the rows of a table with its head first, or None to leave the section out. It may leave files
            of its own in ``context.folder`` where that is not None; ``report.json`` lists them. What a backend made,
            with its engines, is ``context.lowered``. A record with an ``observer`` also hears of every pass while it
            runs, as observers of a `Pipeline` do.

    Order:
        Sections stand in the order of the plugins.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A section that fails is left out; the
        report and a warning say which and why. Where plugins are strict, it is a `PluginError`.

    Example:
        ::

            from collections import Counter

            from fxplug import ReportSectionRecord, hookimpl


            def opcodes(context):
                counts = Counter(node.op for node in context.module.graph.nodes)
                return [("opcode", "nodes"), *sorted(counts.items())]


            @hookimpl
            def fxplug_register_report_sections():
                return [ReportSectionRecord("opcodes", opcodes, "Nodes by opcode")]
    """


# -- what is known of calls and values -----------------------------------------------------------------------


@hookspec
def fxplug_register_effects() -> Iterable[EffectRecord] | None:
    """State what calls do besides computing their value: write, draw random numbers, act outside.

    When:
        Once, when the plugin is loaded. Passes remove, merge and move only what is known to allow it.

    Returns:
        Records, or None for none. All are collected. A record prevails over what fxplug says about the same target.

    Order:
        Makes no difference: what several plugins say about one target is joined, so that each is respected.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin.

    Example:
        ::

            from fxplug import EffectRecord, hookimpl
            from fxplug.ir import OUTSIDE


            def log_value(value):
                print(value)


            @hookimpl
            def fxplug_register_effects():
                return [EffectRecord(log_value, OUTSIDE)]
    """


@hookspec
def fxplug_register_decompositions() -> Iterable[DecompositionRecord] | None:
    """State how calls are expressed by simpler ones.

    When:
        Once, when the plugin is loaded. `fxplug.decompose` runs the functions with proxies in place of values.

    Returns:
        Records, or None for none. All are collected. A function has the parameters of the call that it stands for,
            and returns NotImplemented for a call that it leaves alone.

    Order:
        For one target, the first function that does not return NotImplemented counts; fxplug's own come last.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A function that fails is a
        `DecompositionError` that names the node and the distribution.

    Example:
        ::

            import torch

            from fxplug import DecompositionRecord, hookimpl


            def rsqrt(input):
                return 1 / torch.sqrt(input)


            @hookimpl
            def fxplug_register_decompositions():
                return [DecompositionRecord(torch.rsqrt, rsqrt, "1 / sqrt(x)")]
    """


@hookspec
def fxplug_register_flop_formulas() -> Iterable[FlopFormulaRecord] | None:
    """State how many multiply-adds calls cost, as functions of shapes.

    When:
        Once, when the plugin is loaded. `fxplug.cost` and `fxplug.estimate` use the formulas.

    Returns:
        Records, or None for none. All are collected. A formula takes an ``OperatorCall`` and returns the
            multiply-adds, or a ``CallCost`` that says the bytes and the workspace as well, or None when it cannot
            tell.

    Order:
        For one target, the first formula that has an answer counts; fxplug's own come last.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin. A formula that fails is a
        `PluginError` that names the distribution.

    Example:
        ::

            import torch

            from fxplug import FlopFormulaRecord, hookimpl


            def outer(call):
                return call.elements()


            @hookimpl
            def fxplug_register_flop_formulas():
                return [FlopFormulaRecord(torch.outer, outer)]
    """


@hookspec
def fxplug_register_storage_targets() -> Iterable[StorageTargetRecord] | None:
    """Give functions and classes of modules names in files, so that they can be saved and loaded without ``allow=``.

    When:
        Once, when the plugin is loaded. The name ``clip`` of plugin ``sample`` is written as ``"@sample:clip"``.
        `fxplug.save` notes which distribution brought it; without the plugin `fxplug.load` names that distribution.

    Returns:
        Records, or None for none. All are collected. A name must mean the same in all later versions. A file may call
            a function with any arguments: it must not read files, or run what it is handed. Of a class of modules,
            files keep parameters, buffers, submodules and plain attributes. With `python`, `fxplug.export_python` puts
            a package beside a program that needs neither the plugin nor fxplug.

    Order:
        Where several plugins have named one function, the first in order is written.

    Errors:
        An error, or a record that is not sound, makes the host skip the plugin.

    Example:
        ::

            import torch

            from fxplug import StorageTargetRecord, hookimpl


            def clip(x, limit):
                return torch.clamp(x, -limit, limit)


            @hookimpl
            def fxplug_leaf_functions():
                return [clip]


            @hookimpl
            def fxplug_register_storage_targets():
                return [StorageTargetRecord("clip", clip)]
    """


@hookspec
def fxplug_register_constants() -> Iterable[ConstantRecord] | None:
    """State which foreign types are constants: a graph reads such values from its module, and files keep them.

    When:
        Once, when the plugin is loaded. A value of exactly such a type among the arguments of a traced call becomes a
        ``get_attr`` node, unless a traced value is a part of it; every use of one value reads one attribute.

    Returns:
        Records, or None for none. All are collected. ``encode`` and ``decode`` of a record turn a value into plain
            ones and back, for `fxplug.save` and `fxplug.load`; a record without them can be traced but not stored.

    Order:
        For one type, the first record counts.

    Errors:
        An error, a record that is not sound, or a type that graphs hold already, makes the host skip the plugin.
        ``encode`` and ``decode`` that fail are a `StorageError` that names the distribution.

    Example:
        ::

            from fxplug import ConstantRecord, hookimpl


            class Window:
                def __init__(self, size):
                    self.size = size


            @hookimpl
            def fxplug_register_constants():
                return [
                    ConstantRecord("window", Window, encode=lambda window: window.size, decode=Window)
                ]
    """


# -- pictures ------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def fxplug_represent(graph_module: GraphModule, format: str) -> str | bytes | None:  # noqa: A002 - what it is
    """Show a module in a format, as a text or a picture.

    When:
        Whenever `fxplug.represent` is called, and when a notebook shows a module (``"svg"`` and ``"html"``).

    Args:
        graph_module: The module. It must not be changed.
        format: Name of the format: ``"text"``, ``"html"``, ``"svg"``, ``"dot"``, ...

    Returns:
        The module in that format. None: not a format of this plugin, the next one is asked. The first answer counts.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. fxplug itself knows ``"text"`` and ``"html"``, and comes last.

    Errors:
        An error, or an answer that is neither text nor bytes, is a `PluginError` that names the distribution.

    Example:
        ::

            from fxplug import hookimpl


            @hookimpl
            def fxplug_represent(graph_module, format):
                if format != "names":
                    return None
                return " ".join(node.name for node in graph_module.graph.nodes)
    """


# -- observers -----------------------------------------------------------------------------------------------


@hookspec
def fxplug_trace_started(event: TraceEvent) -> None:
    """Hear that a trace starts.

    When:
        When a trace starts, before anything is recorded.

    Args:
        event: What is traced.

    Returns:
        Nothing; an answer is ignored.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. All hear of it.

    Errors:
        An error is a `PluginWarning` that names the distribution, and the trace goes on; strict: it ends the trace.

    Example:
        ::

            from fxplug import hookimpl

            STARTED = []


            @hookimpl
            def fxplug_trace_started(event):
                STARTED.append(type(event.context.root).__name__)
    """


@hookspec
def fxplug_trace_finished(event: TraceEvent) -> None:
    """Hear that a trace has ended, well or not.

    When:
        When a trace has ended, or an error has ended it.

    Args:
        event: The graph or the error, and how long it took. The graph is not to be changed here: that is what
            passes are for.

    Returns:
        Nothing; an answer is ignored.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. All hear of it.

    Errors:
        An error is a `PluginWarning` that names the distribution; strict: it is raised.

    Example:
        ::

            from fxplug import hookimpl

            SECONDS = []


            @hookimpl
            def fxplug_trace_finished(event):
                SECONDS.append(event.seconds)
    """


@hookspec
def fxplug_pass_started(event: PassEvent) -> None:
    """Hear that a pass of a pipeline starts.

    When:
        Before each pass of a pipeline.

    Args:
        event: Which pass, and the module as it is before.

    Returns:
        Nothing; an answer is ignored.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. All hear of it.

    Errors:
        An error is a `PluginWarning` that names the distribution, and the pipeline goes on; strict: it is raised.

    Example:
        ::

            from fxplug import hookimpl

            STARTED = []


            @hookimpl
            def fxplug_pass_started(event):
                STARTED.append(f"{event.index + 1}/{event.total} {event.name}")
    """


@hookspec
def fxplug_pass_finished(event: PassEvent) -> None:
    """Hear that a pass of a pipeline has ended, well or not.

    When:
        Behind each pass of a pipeline, also behind one that failed.

    Args:
        event: What it did or why it failed, how long it took, how many nodes it changed, and how many bytes the
            weights keep. After a failure the module is as before the pass.

    Returns:
        Nothing; an answer is ignored.

    Order:
        ``tryfirst``, then by plugin, then ``trylast``. All hear of it.

    Errors:
        An error is a `PluginWarning` that names the distribution, and the pipeline goes on; strict: it is raised.

    Example:
        ::

            from fxplug import hookimpl

            FINISHED = {}


            @hookimpl
            def fxplug_pass_finished(event):
                FINISHED[event.name] = event.result or event.error
    """
