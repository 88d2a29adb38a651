"""What plugins add to a trace: five that answer the questions asked for every node, and five that answer others."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import fxplug
from benchmarks.programs import resnet50
from benchmarks.report import Figure, promised
from benchmarks.timing import interleave, paired_ratio
from fxplug.plugins import BackendRecord, PassRecord, PluginCandidate, PluginManager, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.modes import Mode

__all__ = ["hook_contenders", "measure_hooks"]

_PLUGINS = ("alpha", "beta", "gamma", "delta", "epsilon")


class _Mixin:
    """Adds nothing: what is measured is the question."""


def _per_node_hooks(name: str) -> dict[str, Callable[..., Any]]:
    key = f"{name}.note"

    def fxplug_is_leaf_module(module: Any) -> None:
        """Have no opinion, so that the next plugin is asked."""

    def fxplug_node_created(node: Any) -> dict[str, str]:
        return {key: node.op}

    return {"fxplug_is_leaf_module": fxplug_is_leaf_module, "fxplug_node_created": fxplug_node_created}


def _other_hooks(_: str) -> dict[str, Callable[..., Any]]:
    return {
        "fxplug_create_proxy": lambda: _Mixin,
        "fxplug_create_argument": lambda value: None,
        "fxplug_unwrap_module": lambda module: None,
        "fxplug_leaf_functions": lambda: (),
        "fxplug_trace_started": lambda event: None,
        "fxplug_trace_finished": lambda event: None,
        "fxplug_pass_started": lambda event: None,
        "fxplug_pass_finished": lambda event: None,
        "fxplug_register_passes": lambda: [PassRecord("nothing", object, "Does nothing.")],
        "fxplug_register_backends": lambda: [BackendRecord("nothing", object, "Runs nothing.")],
    }


def _proxy_hooks(_: str) -> dict[str, Callable[..., Any]]:
    return {"fxplug_create_proxy": lambda kind: _Mixin}


def _proxy_of_node_hooks(_: str) -> dict[str, Callable[..., Any]]:
    return {"fxplug_create_proxy": lambda node: _Mixin}


def _trace_with(hooks: Callable[[str], Mapping[str, Callable[..., Any]]] | None) -> Callable[[], object]:
    candidates: list[PluginCandidate] = []
    for name in _PLUGINS if hooks is not None else ():
        plugin = ModuleType(f"hooks_of_{name}")
        for hook, function in hooks(name).items() if hooks is not None else ():
            setattr(plugin, hook, hookimpl(specname=hook)(function))
        candidates.append(PluginCandidate.of_module(plugin, name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*argument node of fxplug_create_proxy", DeprecationWarning)
        manager = PluginManager(candidates=candidates, environ={}, strict=True)
    model = resnet50()
    return lambda: fxplug.Tracer(policy=manager.trace_policy()).trace(model)


def hook_contenders() -> dict[str, Callable[[], object]]:
    """Return what is timed: traces of ResNet-50 that differ in their plugins alone."""
    return {
        "none": _trace_with(None),
        "per node": _trace_with(_per_node_hooks),
        "others": _trace_with(_other_hooks),
        "proxies": _trace_with(_proxy_hooks),
        "proxies by node": _trace_with(_proxy_of_node_hooks),
    }


def measure_hooks(mode: Mode) -> list[Figure]:
    """Measure what five plugins cost a trace of ResNet-50, against none."""
    # A difference of some per cent is small beside the scatter of single traces.
    samples = interleave(hook_contenders(), 4 * mode.rounds)

    def times(contender: str) -> float:
        return paired_ratio(samples[contender], samples["none"]).median

    name = "trace of ResNet-50 with five plugins, against none"
    return [
        Figure(
            f"{name}: is_leaf_module and node_created",
            "times",
            times("per node"),
            promised(mode, "at most 1.3", most=1.3),
        ),
        Figure(
            f"{name}: all other hooks",
            "times",
            times("others"),
            promised(mode, "at most 1.03", most=1.03),
        ),
        Figure(
            f"{name}: create_proxy",
            "times",
            times("proxies"),
            promised(mode, "at most 1.03", most=1.03),
        ),
        Figure(
            f"{name}: create_proxy that takes the node, deprecated",
            "times",
            times("proxies by node"),
            promised(mode, "at most 1.3", most=1.3),
        ),
    ]
