"""Every private name of torch that fxplug uses, as text, so that ``fxplug doctor`` can say which one a torch lacks.

The names are used in `fxplug.semantics.internals` alone; a test holds the two modules against each other. This one
imports nothing of fxplug, because without one of the names most of fxplug cannot be imported.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROBES", "UNPROBED", "TorchName", "missing_names"]


@dataclass(frozen=True)
class TorchName:
    """One private name."""

    name: str
    """Its path; a call in it stands for an example of the class."""
    needed_for: str
    """What does not work without it."""


def _below(prefix: str, names: str, needed_for: str) -> tuple[TorchName, ...]:
    return tuple(TorchName(f"{prefix}.{name}", needed_for) for name in names.split())


PROBES: tuple[TorchName, ...] = (
    *_below("torch", "_assert", "asserts in graphs"),
    *_below("torch._ops", "OpOverload OpOverloadPacket HigherOrderOperator", "telling operators apart"),
    *_below("torch.ops.aten.add.Tensor", "_schema", "effects and canonical forms of operators"),
    *_below("torch._C", "ScriptMethod", "scripted modules"),
    *_below("torch._C", "_storage_id", "telling which tensors share memory"),
    *_below("torch._C", "_get_tracing_state", "calling layers while tracing with example inputs"),
    *_below("torch.nn.Module", "_call_impl", "calling layers while tracing with example inputs"),
    *_below(
        "torch.nn.modules.module",
        "_forward_unimplemented",
        "calling layers while tracing with example inputs",
    ),
    *_below("torch._C", "_nn", "operators of torch.nn in saved files"),
    *_below("torch._C", "_fft _linalg _special", "telling functions that compute from others"),
    *_below(
        "torch._C",
        "DisableTorchFunction _disabled_torch_function_impl",
        "asking tensors while a trace listens",
    ),
    *_below(
        "torch._C",
        "_len_torch_function_stack _pop_torch_function_stack _push_on_torch_function_stack",
        "hearing calls while tracing",
    ),
    *_below(
        "torch._C",
        "_get_dispatch_stack_at _len_torch_dispatch_stack _pop_torch_dispatch_stack _push_on_torch_dispatch_stack",
        "hearing operators while tracing with example inputs",
    ),
    *_below(
        "torch.overrides",
        "_get_current_function_mode _pop_mode _push_mode",
        "modes that outlive what they were for",
    ),
    *_below("torch.utils._python_dispatch", "TorchDispatchMode", "hearing operators"),
    *_below(
        "torch.utils._python_dispatch", "_get_current_dispatch_mode_stack", "choices (torch.cond) in programs"
    ),
    *_below("torch.nn.utils.parametrizations", "_Orthogonal _WeightNorm", "weights that are computed anew"),
    *_below(
        "torch.jit._builtins", "_find_builtin _register_builtin", "scripting while a trace hears of modes"
    ),
    *_below("torch._dispatch.python", "enable_python_dispatcher", "decomposing to ATen"),
    *_below(
        "torch.ops.aten",
        "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training",
        "decomposing to ATen",
    ),
    *_below("torch.zeros(())", "_version", "decomposing to ATen"),
    *_below("torch._guards", "Source", "symbolic sizes"),
    *_below("torch.ops.aten.add.Tensor", "_can_decompose", "decomposing to ATen"),
    *_below("torch._C", "_dispatch_has_kernel", "decomposing to ATen"),
    *_below("torch.Tensor", "_make_subclass", "parameters of saved files"),
    *_below("torch.Tensor", "_is_zerotensor", "refusing tensors without memory in saved files"),
    *_below("torch.nn.Module", "_apply", "leaving modules that a traced program converts as they were"),
    *_below(
        "torch",
        "_disable_functionalization _enable_functionalization _from_functional_tensor _is_functional_tensor _sync "
        "_functionalize_are_all_mutations_under_no_grad_or_inference_mode _functionalize_has_data_mutation "
        "_to_functional_tensor",
        "decomposing to ATen",
    ),
    *_below("torch.utils._python_dispatch", "is_traceable_wrapper_subclass", "undoing what passes write"),
    *_below("torch.Tensor", "_indices _values", "undoing what passes write"),
    *_below("torch", "_disable_dynamo", "passes that compile functions"),
    *_below("torch.Tensor", "_version", "convolutions with packed weights"),
    *_below("torch.Tensor", "_base", "inputs that are results, as they were before a capture"),
    *_below(
        "torch.autograd.grad_mode",
        "_unsafe_preserve_version_counter",
        "inputs that are results, as they were before a capture",
    ),
    *_below("torch._C._functorch", "peek_interpreter_stack", "convolutions with packed weights"),
    *_below("torch.autograd.forward_ad", "_current_level", "convolutions with packed weights"),
    *_below("torch._C", "_set_grad_enabled", "regions without gradients, beside other threads"),
    *_below(
        "torch._C._dynamo.eval_frame",
        "_FrameExecStrategy _FrameAction set_code_exec_strategy",
        "generated code under torch.compile",
    ),
    *_below(
        "torch.utils._device", "_device_constructors", "tensors made while a program has changed a setting"
    ),
    *_below("torch.distributions.Distribution", "_extended_shape", "distributions of any batch size"),
    *_below("torch._higher_order_ops", "while_loop", "control flow operators in graphs"),
    *_below("torch._functorch.vmap", "vmap_impl", "torch.func in graphs"),
    *_below(
        "torch._functorch.eager_transforms",
        "grad_impl grad_and_value_impl vjp jvp _vjp_with_argnums _jvp_with_argnums",
        "torch.func in graphs",
    ),
    *_below("torch._functorch.functional_call", "functional_call", "torch.func in graphs"),
    *_below(
        "torch._jit_internal",
        "_isinstance boolean_dispatched container_checker",
        "functions with two signatures",
    ),
    *_below(
        "torch._subclasses.fake_tensor",
        "DataDependentOutputException DynamicOutputShapeException FakeTensor FakeTensorMode "
        "UnsupportedFakeTensorException UnsupportedOperatorException unset_fake_temporarily",
        "tracing with shapes and without data",
    ),
    *_below("torch.nn.modules.batchnorm", "_BatchNorm _NormBase", "folding batch norm; effects of training"),
    *_below("torch.nn.modules.conv", "_ConvNd", "layers that return new tensors"),
    *_below("torch.nn.modules.dropout", "_DropoutNd", "effects of dropout"),
    *_below(
        "torch.utils._pytree",
        "TreeSpec tree_flatten tree_flatten_with_path keystr",
        "nested inputs and outputs",
    ),
    *_below("torch.utils._pytree", "tree_leaves tree_map tree_unflatten", "nested inputs and outputs"),
    *_below(
        "torch.fx._symbolic_trace",
        "Tracer _is_fx_tracing_flag _wrapped_fns_to_patch _wrapped_methods_to_patch",
        "getting along with torch.fx",
    ),
    *_below(
        "torch.fx._lazy_graph_module", "_LazyGraphModule", "tracing what torch.compile hands to backends"
    ),
    *_below(
        "torch.fx._lazy_graph_module._LazyGraphModule",
        "_lazy_forward",
        "tracing what torch.compile hands to backends",
    ),
    *_below("torch.nn.Module()", "_parameters _buffers _modules _non_persistent_buffers_set", "every trace"),
    *_below("torch.nn.Module()", "_get_name _is_full_backward_hook", "copies and files of modules"),
    *_below(
        "torch.nn.Module()",
        "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks",
        "modules with hooks",
    ),
    *_below(
        "torch.nn.modules.module",
        "_global_forward_hooks _global_forward_pre_hooks _global_backward_hooks _global_backward_pre_hooks",
        "modules with hooks",
    ),
    *_below("torch.zeros(())", "_backward_hooks _post_accumulate_grad_hooks", "undoing what passes change"),
    *_below("torch.autocast()", "_enabled _cache_enabled", "autocast regions"),
    *_below("torch.UntypedStorage()", "_cdata", "telling whether tensors share memory"),
)
"""What is looked for, each with what it is needed for."""

UNPROBED = frozenset(
    {
        *("_dynamo_marked_constant", "_torchdynamo_inline", "_Patcher__fx_already_patched", "_orig_mod"),
        *("_convolution_pointwise", "_convolution_pointwise_", "_linear_pointwise"),
        *("_reorder_convolution_weight", "_reorder_linear_weight"),
    }
)
"""Attributes that torch looks for or sets at objects while it runs, so that there is no place to look for them; and the
operators of oneDNN, which are looked for by running them, and are missing where a processor or a build has none."""

_EXAMPLES: dict[str, Callable[[Any], Any]] = {
    "Module()": lambda torch: torch.nn.Module(),
    "autocast()": lambda torch: torch.autocast("cpu"),
    "zeros(())": lambda torch: torch.zeros(()),
    "UntypedStorage()": lambda torch: torch.UntypedStorage(),
}


def missing_names() -> list[TorchName]:
    """Return the names that the installed torch lacks."""
    return [probe for probe in PROBES if not _is_found(probe.name)]


def _is_found(name: str) -> bool:
    torch = importlib.import_module("torch")
    value: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        if part in _EXAMPLES:
            value = _EXAMPLES[part](torch)
            continue
        path = f"{path}.{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(path)
            except ImportError:
                return False
    return True
