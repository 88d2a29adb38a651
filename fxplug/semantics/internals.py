"""Every private name of torch that fxplug uses, in one place, so that a new torch can be checked against it."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections import OrderedDict
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import torch
import torch.utils.checkpoint
from torch import _higher_order_ops as higher_order
from torch import nn, overrides
from torch._C._dynamo import eval_frame as _dynamo_frames
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import eager_transforms, functional_call
from torch._functorch import vmap as functorch_vmap
from torch._guards import Source
from torch._jit_internal import _isinstance, boolean_dispatched, container_checker
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.fx import _symbolic_trace
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.jit import _builtins
from torch.nn.modules import module as module_base
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations, parametrize
from torch.utils import _python_dispatch, _pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
    from contextlib import AbstractContextManager
    from types import CodeType

    from torch.overrides import TorchFunctionMode

__all__ = [
    "ATTRIBUTES_OF_MODULES",
    "BOOLEAN_DISPATCHED",
    "COMPILED_MODULE",
    "COMPILER",
    "COMPILES_CHOICES",
    "DISABLED_DISPATCH",
    "DYNAMO_INLINE",
    "FUNCTIONAL_BATCH_NORM",
    "HOOKS_OF_TENSORS",
    "HOOK_TABLES",
    "MARKS_OF_COMPILER",
    "MODULES_OF_OPERATORS",
    "MODULES_WITH_MODES",
    "NN_OPERATORS",
    "OTHER_TABLES",
    "RRELU",
    "SET_GRAD_ENABLED",
    "SWITCHES",
    "TORCH_FX_PATCHED",
    "TRAINED_BATCH_NORM",
    "TYPE_QUESTIONS",
    "USED_BATCH_NORM",
    "BatchNormBase",
    "ConvBase",
    "DropoutBase",
    "HigherOrderOperator",
    "LightDispatchMode",
    "NamedSource",
    "NormBase",
    "OneDnnOperators",
    "OpOverload",
    "OpOverloadPacket",
    "ScriptMethod",
    "TorchDispatchMode",
    "TorchFxTracer",
    "TreeSpec",
    "are_calls_heard",
    "as_parameter",
    "assert_function",
    "autocast_arguments",
    "autograd_modes",
    "base_of",
    "beneath",
    "buffers_of",
    "caches_of_weights",
    "call_beneath",
    "calls_forward",
    "can_be_rebuilt",
    "compiles_functions",
    "computes_by_itself",
    "dispatch_modes",
    "empty_module",
    "every_module",
    "extended_sizes",
    "flatten_tree",
    "flatten_tree_with_paths",
    "from_functional",
    "functionalisation",
    "generate_code",
    "global_hook_tables",
    "has_backward_hooks",
    "has_forward_hooks",
    "has_gradient_hooks",
    "has_hooks",
    "has_only_weight_hooks",
    "has_own_call",
    "has_pure_weights",
    "hook_tables",
    "hook_tables_in",
    "hook_tables_of",
    "hooks_around_forward",
    "is_about_missing_data",
    "is_called_as_modules_are",
    "is_compiled_class",
    "is_compiler_loaded",
    "is_differentiating",
    "is_factory",
    "is_fake",
    "is_functional",
    "is_implicit",
    "is_listening",
    "is_real_tensor",
    "is_registered",
    "is_run_as_written",
    "is_transient",
    "is_under_modes",
    "is_zero_tensor",
    "keep_version",
    "load_compiler",
    "map_leaves",
    "memory_of",
    "modules_below",
    "modules_of",
    "onednn_operators",
    "opaque_functions",
    "own_tables",
    "parameter_of",
    "parameters_of",
    "parametrized_among",
    "paths_and_modules_below",
    "paths_below",
    "paths_with_hooks",
    "persists",
    "put_on",
    "put_on_calls",
    "rank_of",
    "remove_mode",
    "remove_modes_above",
    "root_being_traced",
    "runs_for_all_modules",
    "runs_outside_dynamo",
    "schema_of",
    "set_torch_fx_flag",
    "skip_frame",
    "stands_in_for_scripts",
    "storage_and_size_of",
    "storage_of",
    "storages_below",
    "take_off",
    "take_off_calls",
    "tensor_tables",
    "to_functional",
    "torch_fx_flag",
    "torch_fx_wrapped_functions",
    "torch_fx_wrapped_methods",
    "unflatten_tree",
    "version_of",
    "with_data",
    "without_compiling",
    "without_data",
    "without_kept_casts",
    "without_mode",
    "writes_hidden_from_autograd",
]

COMPILER = "torch._dynamo"
"""What takes long to import; the code generators behind it import it, too."""
MARKS_OF_COMPILER = ("_dynamo_", "_has_dynamo_")
"""How the names begin of what it notes on tensors, such as which of their sizes are to stay open."""

COMPILES_CHOICES: FunctionType | None = getattr(
    getattr(higher_order, "utils", None), "_hop_compile_and_call", None
)
"""By which ``torch.cond``, ``while_loop`` and others have compiled what they run."""
BOOLEAN_DISPATCHED: Mapping[Any, Mapping[str, Any]] = boolean_dispatched
"""Functions of torch.nn.functional that stand for two others, and these."""
TYPE_QUESTIONS: frozenset[CodeType] = frozenset(
    (torch.is_tensor.__code__, _isinstance.__code__, container_checker.__code__)
)
"""Code of torch that asks for the class of a value on behalf of its caller."""
BatchNormBase = _BatchNorm
"""Base of the batch-norm modules."""
NormBase = _NormBase
"""Base of the modules with running statistics."""
ConvBase = _ConvNd
DropoutBase = _DropoutNd
"""Base of the dropout modules."""
OpOverload = torch._ops.OpOverload
"""One overload of an operator."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes functions."""
TreeSpec = _pytree.TreeSpec
"""The structure of a nested value."""
ScriptMethod = torch._C.ScriptMethod
"""A method of a scripted module."""
FUNCTIONAL_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
"""A batch norm that returns its new statistics."""
RRELU = torch.ops.aten.rrelu_with_noise_functional.default
"""A leaky relu with random slopes."""
TRAINED_BATCH_NORM = torch.ops.aten._native_batch_norm_legit.no_stats
"""A batch norm with the statistics of what it is given."""
USED_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
"""A batch norm with statistics that it has."""
NN_OPERATORS: Any = vars(torch._C)["_nn"]
"""The module with those operators of torch.nn that are no methods."""
assert_function = torch._assert
"""An assertion that can stand in a graph."""
TorchFxTracer = _symbolic_trace.Tracer
"""What traces in torch.fx."""
DISABLED_DISPATCH = torch._C._disabled_torch_function_impl
"""What torch finds at an object that does not want to hear of calls."""
_count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_pop_function_mode: Callable[[], Any] = torch._C._pop_torch_function_stack
_push_function_mode: Callable[[Any], None] = torch._C._push_on_torch_function_stack
_count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_pop_dispatch_mode: Callable[[Any], Any] = torch._C._pop_torch_dispatch_stack
_dispatch_mode_at: Callable[[int], Any] = torch._C._get_dispatch_stack_at
_push_dispatch_mode: Callable[[Any], None] = torch._C._push_on_torch_dispatch_stack
_functorch: Any = vars(torch._C)["_functorch"]
COMPILED_MODULE = "_orig_mod"
"""Attribute of what ``torch.compile`` returns: the module inside."""
DYNAMO_INLINE = "_torchdynamo_inline"
"""Attribute of a function: another one, which Dynamo is to inline in its place."""
SET_GRAD_ENABLED = torch._C._set_grad_enabled
"""What `torch.no_grad` and its like call to take effect."""
TORCH_FX_PATCHED = "_Patcher__fx_already_patched"
"""Attribute of the functions that a running trace of torch.fx has put in the place of others."""


def schema_of(overload: Any) -> Any:
    """Return the schema of an operator overload."""
    return overload._schema


def autocast_arguments(context: torch.autocast) -> tuple[str, torch.dtype | None, bool, bool]:
    """Return what makes a context that does the same: device, dtype, whether it is on, whether casts are kept."""
    return context.device, context.fast_dtype, bool(context._enabled), bool(context._cache_enabled)


class OneDnnOperators(NamedTuple):
    """Operators of oneDNN that do more than one thing in a call."""

    convolution: Callable[..., torch.Tensor]
    """Convolution and activation."""
    convolution_sum: Callable[..., torch.Tensor]
    """Convolution, sum with another tensor, and activation."""
    convolution_sum_: Callable[..., torch.Tensor]
    """The same, written into the other tensor."""
    linear: Callable[..., torch.Tensor]
    """Linear map and activation."""
    linear_sum: Callable[..., torch.Tensor]
    """Linear map and sum with another tensor."""
    pack_convolution: Callable[..., torch.Tensor]
    """Lays the weight of a convolution out as oneDNN reads it."""
    pack_linear: Callable[..., torch.Tensor]
    """Lays the weight of a linear map out as oneDNN reads it."""


@functools.cache
def onednn_operators() -> OneDnnOperators:
    """Return the operators of oneDNN.

    Raises:
        AttributeError: The installed torch lacks one of them.
    """
    library = torch.ops.mkldnn
    return OneDnnOperators(
        library._convolution_pointwise.default,
        library._convolution_pointwise.binary,
        library._convolution_pointwise_.binary,
        library._linear_pointwise.default,
        library._linear_pointwise.binary,
        library._reorder_convolution_weight.default,
        library._reorder_linear_weight.default,
    )


def is_differentiating() -> bool:
    """Return whether `torch.func` transforms calls, or forward-mode differentiation is on, in this thread."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def are_saved_tensors_heard() -> bool:
    """Return whether anybody hears of the tensors that are kept for gradients."""
    return vars(torch._C)["_autograd"]._top_saved_tensors_default_hooks(True) is not None


def is_listened_to() -> bool:
    """Return whether something hears of every operator in this thread, and may answer in its place."""
    return torch._C._len_torch_dispatch_stack() > 0


def version_of(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written in place; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def opaque_functions() -> dict[str, FunctionType]:
    """Return the functions whose calls are one thing, whatever they run, by names for what calls them."""
    found: dict[str, Any] = {
        "apply": vars(torch.autograd.Function)["apply"].__func__,
        "checkpoint": torch.utils.checkpoint.checkpoint,
        "cond": torch.cond,
        "while_loop": higher_order.while_loop,
        "scan": getattr(higher_order, "scan", None),
        "associative_scan": getattr(higher_order, "associative_scan", None),
        "map": getattr(higher_order, "map", None),
        "vmap": functorch_vmap.vmap_impl,
        "grad": eager_transforms.grad_impl,
        "grad_and_value": eager_transforms.grad_and_value_impl,
        "functional_call": functional_call.functional_call,
        "vjp": eager_transforms.vjp,
        "jvp": eager_transforms.jvp,
        "linearize": eager_transforms.linearize,
        "jacrev": eager_transforms._vjp_with_argnums,
        "jacfwd": eager_transforms._jvp_with_argnums,
    }
    return {name: function for name, function in found.items() if isinstance(function, FunctionType)}


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether anything runs before or after the module's forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module_base._global_forward_hooks
        or module_base._global_forward_pre_hooks
    )


def paths_with_hooks(root: nn.Module) -> set[str]:
    """Return the paths of the modules below a root with something of a program that runs around their forward.

    Those that hold such a module are among them; what torch itself computes weights with is none.
    """
    found: set[str] = set()
    for path, module in root.named_modules():
        if (
            path
            and (module._forward_hooks or module._forward_pre_hooks)
            and not has_only_weight_hooks(module)
        ):
            names = path.split(".")
            found.update(".".join(names[:count]) for count in range(1, len(names) + 1))
    return found


def hooks_around_forward(module: nn.Module) -> list[Callable[..., Any]]:
    """Return what the module itself has run before and after its forward."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return [*before.values(), *after.values()] if before or after else []


def is_under_modes() -> bool:
    """Return whether modes that Dynamo does not know take calls upon themselves: it compiles nothing then."""
    return any(not mode.is_infra_mode() for mode in _python_dispatch._get_current_dispatch_mode_stack())


def autograd_modes() -> tuple[bool, ...]:
    """Return how the running thread computes: with gradients, in inference mode, with autocast."""
    autocast = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


def global_hook_tables() -> tuple[dict[Any, Any], ...]:
    """Return the tables of what runs around the forward or backward of all modules."""
    return (
        module_base._global_forward_hooks,
        module_base._global_forward_pre_hooks,
        module_base._global_backward_hooks,
        module_base._global_backward_pre_hooks,
    )


def has_backward_hooks(module: nn.Module) -> bool:
    """Return whether anything runs around the module's backward."""
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or module_base._global_backward_hooks
        or module_base._global_backward_pre_hooks
    )


def has_hooks(module: nn.Module) -> bool:
    """Return whether anything runs around the module's forward or backward."""
    # Written out: it is asked for every call of a module that is captured.
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module_base._global_forward_hooks
        or module_base._global_forward_pre_hooks
        or module_base._global_backward_hooks
        or module_base._global_backward_pre_hooks
    )


def runs_for_all_modules() -> bool:
    """Return whether anything runs around the forward or backward of all modules."""
    return any(global_hook_tables())


hook_tables_in: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
)
"""Returns the tables of what runs around the forward or backward of a module, given its attributes."""


def is_called_as_modules_are(kind: type[nn.Module]) -> bool:
    """Return whether a class leaves to its base what it means to call a module."""
    return kind.__call__ is nn.Module.__call__ and kind._call_impl is nn.Module._call_impl


def has_own_call(kind: type[nn.Module]) -> bool:
    """Return whether a class of modules has a ``__call__`` around its forward that is none of torch or of fxplug.

    Theirs only wrap errors, as those of graph modules do.
    """
    if kind.__call__ is nn.Module.__call__:
        return False
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return not all(_wraps_errors(base) for base in bases if "__call__" in vars(base))


def _wraps_errors(kind: type) -> bool:
    # Not by the name that functions give of their module: functools.wraps copies it.
    home = str(getattr(vars(kind)["__call__"], "__globals__", {}).get("__name__", ""))
    return all(name.startswith(("torch.", "fxplug.")) for name in (str(kind.__module__), home))


MODULES_OF_OPERATORS = frozenset({"torch._C._fft", "torch._C._linalg", "torch._C._nn", "torch._C._special"})
"""Where the functions of torch are that compute, and that are written in C, besides those that are of no module."""


def is_run_as_written(held: Mapping[str, Any]) -> bool:
    """Return whether nothing but its class says what the calls of a module do, and its ``train``, given its attributes.

    It has no hooks, and no methods of its own.
    """
    # Written out: a model has hundreds of modules, and all are asked about.
    return not (
        held["_forward_hooks"]
        or held["_forward_pre_hooks"]
        or held["_backward_hooks"]
        or held["_backward_pre_hooks"]
        or "forward" in held
        or "_call_impl" in held
        or "_wrapped_call_impl" in held
        or "train" in held
        or "eval" in held
    )


def has_only_weight_hooks(module: nn.Module) -> bool:
    """Return whether all hooks of a module are those with which torch itself computes its weights."""
    if module._forward_hooks or module_base._global_forward_hooks or module_base._global_forward_pre_hooks:
        return False
    hooks = module._forward_pre_hooks.values()
    return not has_backward_hooks(module) and all(
        str(type(hook).__module__).startswith("torch.nn.utils.") for hook in hooks
    )


def parametrized_among(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return those modules of which torch computes a weight anew at each read (`torch.nn.utils.parametrize`)."""
    # torch makes a class for each of them. This is asked in every trace, and most models have none.
    kinds = {
        kind
        for kind in set(map(type, modules))
        if kind.__module__ == parametrize.__name__ and kind is not parametrize.ParametrizationList
    }
    return [module for module in modules if type(module) in kinds] if kinds else []


def has_pure_weights(module: nn.Module) -> bool:
    """Return whether what computes the weights of a parametrized module is known to use the original ones alone."""
    parts = [
        part for each in cast("nn.ModuleDict", module.parametrizations).values() for part in each.children()
    ]
    return all(isinstance(part, _PURE_PARAMETRIZATIONS) for part in parts)


_PURE_PARAMETRIZATIONS = (parametrizations._WeightNorm, parametrizations._Orthogonal)


def caches_of_weights() -> int:
    """Return inside of how many ``parametrize.cached()`` the process is."""
    return parametrize._cache_enabled


def parameters_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of parameters."""
    return module._parameters


def as_parameter(tensor: torch.Tensor, requires_grad: bool) -> nn.Parameter:  # noqa: FBT001
    """Return a parameter with the memory of a plain tensor, past what `nn.Parameter` asks about other ones."""
    # Assigning the class would take half the time, and raise an audit event for each parameter that a file holds.
    return torch.Tensor._make_subclass(nn.Parameter, tensor, requires_grad)


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is zero everywhere and has no memory, as some gradients are."""
    return tensor._is_zerotensor()


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Return whether a tensor calls functions when its gradient is computed."""
    return bool(tensor._backward_hooks) or bool(tensor._post_accumulate_grad_hooks)


def parameter_of(module: nn.Module, name: str) -> Any:
    """Return what the module holds under the name of a parameter; an own parameter is found without a search."""
    value = module._parameters.get(name)
    return getattr(module, name) if value is None else value


def buffers_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of buffers."""
    return module._buffers


def modules_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of submodules."""
    return module._modules


def extended_sizes(distribution: torch.distributions.Distribution, wanted: Any) -> tuple[Any, ...]:
    """Return the sizes of samples of a distribution; nothing where `wanted`, how many there are to be, is no tuple."""
    if not isinstance(wanted, (tuple, list)):
        return ()
    return (*wanted, *distribution._batch_shape, *distribution._event_shape)


def empty_module() -> nn.Module:
    """Return what ``nn.Module()`` returns, in a fraction of the time."""
    module = nn.Module.__new__(nn.Module)
    own = vars(module)
    own.update(_EMPTY)
    for name, kind in _TABLES:
        own[name] = kind()
    return module


_EMPTY = vars(nn.Module())
_TABLES = tuple(
    (name, value.__class__) for name, value in _EMPTY.items() if value.__class__ in {dict, OrderedDict, set}
)
"""The names of the tables that a module has to itself, all of them empty in a new one, and their classes."""


ATTRIBUTES_OF_MODULES = [*_EMPTY]
"""The names of what every module has, in the order in which a new one gets them."""
OTHER_TABLES = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
"""Those of the tables of a module that are not about hooks."""
HOOK_TABLES = tuple(name for name, _ in _TABLES if name not in OTHER_TABLES)
"""Those that hold what is called when something is done with a module."""


SWITCHES = tuple(name for name in _EMPTY if name not in (*HOOK_TABLES, *OTHER_TABLES))
"""What every module has and that is no table."""


def own_tables(
    module: nn.Module,
) -> tuple[MutableMapping[str, Any], MutableMapping[str, Any], MutableMapping[str, Any]]:
    """Return the module's own tables: of parameters, of buffers, of submodules."""
    return module._parameters, module._buffers, module._modules


def runs_outside_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Dynamo call a function for its result when it meets it, instead of tracing it.

    It is what ``torch.compiler.assume_constant_result`` does, which imports all of Dynamo: a second for everybody.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def paths_below(root: nn.Module) -> dict[int, str]:
    """Return the id of every module from `root` on -> its dotted path; the first one where it has several."""
    paths = {id(root): ""}

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in module._modules.items():
            if child is not None and id(child) not in paths:
                path = paths[id(child)] = prefix + name
                if child._modules:
                    visit(child, f"{path}.")

    visit(root, "")
    return paths


def paths_and_modules_below(root: nn.Module) -> tuple[dict[int, str], list[nn.Module]]:
    """Return what `paths_below` returns, and the modules in the same order."""
    paths = {id(root): ""}
    modules = [root]
    _visit(root, "", paths, modules)
    return paths, modules


def _visit(module: nn.Module, prefix: str, paths: dict[int, str], modules: list[nn.Module]) -> None:
    # No function inside of the other one: it would refer to itself, and keep the modules until the next collection.
    for name, child in module._modules.items():
        if child is not None and id(child) not in paths:
            path = paths[id(child)] = prefix + name
            modules.append(child)
            if child._modules:
                _visit(child, f"{path}.", paths, modules)


def hook_tables(module: nn.Module) -> tuple[MutableMapping[Any, Any], ...]:
    """Return the tables of what runs around the module's forward or backward."""
    return (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )


def modules_below(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return path and module of every module from `root` on, each once, in the order of ``named_modules``."""
    # Without generators inside of generators: each module would pass through as many as it lies deep.
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    pending: list[tuple[str, nn.Module]] = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        prefix = f"{path}." if path else ""
        children = [(prefix + name, child) for name, child in module._modules.items() if child is not None]
        pending += reversed(children)
    return found


def modules_in_order(root: nn.Module) -> list[nn.Module]:
    """Return the modules of `modules_below`, in the same order."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    pending: list[nn.Module] = [root]
    while pending:
        module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append(module)
        if module._modules:
            children = [child for child in module._modules.values() if child is not None]
            pending += children[::-1]
    return found


def every_module(root: nn.Module) -> list[nn.Module]:
    """Return a module and all below it, each once, in no particular order."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    pending: list[nn.Module | None] = [root]
    while pending:
        module = pending.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found.append(module)
        if module._modules:
            pending += module._modules.values()
    return found


def generate_code(root: Any) -> Any:
    """Let graph modules of torch.fx among a module and those below it have their code, which some make at first use.

    The compiler of torch hands such modules to its backends. Until then their forward is one that makes the code.

    Returns:
        What was given; for a method of such a module, the one that the module has now.
    """
    # Each has a class of its own. Most programs have none, and need not be looked through.
    owner: Any = root if isinstance(root, nn.Module) else getattr(root, "__self__", None)
    if not isinstance(owner, nn.Module) or not _LazyGraphModule.__subclasses__():
        return root
    is_late = getattr(root, "__func__", None) is _LazyGraphModule._lazy_forward
    for module in every_module(owner):
        if isinstance(module, _LazyGraphModule):
            _LazyGraphModule.force_recompile(module)
    return owner.forward if is_late else root


def tensor_tables(modules: Iterable[nn.Module]) -> list[MutableMapping[str, Any]]:
    """Return the tables of parameters and buffers, those with nothing in them left out, of some modules."""
    tables: list[MutableMapping[str, Any]] = []
    for module in modules:
        if module._parameters:
            tables.append(module._parameters)
        if module._buffers:
            tables.append(module._buffers)
    return tables


def persists(module: nn.Module, name: str) -> bool:
    """Return whether the attribute `name` is a buffer that belongs to the module's state dict."""
    return name in module._buffers and name not in module._non_persistent_buffers_set


def is_transient(module: nn.Module, name: str) -> bool:
    """Return whether the attribute `name` is a buffer that is left out of the module's state dict."""
    return name in module._buffers and name in module._non_persistent_buffers_set


def skip_frame(code: CodeType, *, below: bool = False) -> None:
    """Tell Dynamo not to compile frames of `code`.

    Args:
        code: Of a function.
        below: Whether what they call is not compiled either; else it is, as always.
    """
    strategy, action = _dynamo_frames._FrameExecStrategy, _dynamo_frames._FrameAction
    inner = action.SKIP if below else action.DEFAULT
    _dynamo_frames.set_code_exec_strategy(code, strategy(action.SKIP, inner))


def torch_fx_wrapped_functions() -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the globals of its module of every function that was passed to ``torch.fx.wrap``."""
    return [(name, namespace) for (_, name), namespace in list(_symbolic_trace._wrapped_fns_to_patch.items())]


def torch_fx_wrapped_methods() -> list[tuple[type, str]]:
    """Return the class and the name of every method whose calls torch.fx keeps as calls."""
    return list(_symbolic_trace._wrapped_methods_to_patch)


def torch_fx_flag() -> Any:
    """Return the flag by which torch.fx says that it traces."""
    return _symbolic_trace._is_fx_tracing_flag


def set_torch_fx_flag(value: Any) -> None:
    """Set the flag by which torch.fx says that it traces."""
    _symbolic_trace._is_fx_tracing_flag = value


def flatten_tree(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a nested value, and its structure."""
    return _pytree.tree_flatten(value, is_leaf=_is_size)


def flatten_tree_with_paths(value: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the leaves of a nested value, each with the text that selects it, and the structure."""
    leaves, spec = _pytree.tree_flatten_with_path(value, is_leaf=_is_size)
    return [(_pytree.keystr(path), leaf) for path, leaf in leaves], spec


def _is_size(value: Any) -> bool:
    # Whether torch takes sizes apart depends on its version; they come back as plain tuples if it does.
    return isinstance(value, torch.Size)


def is_registered(value: Any) -> bool:
    """Return whether a value is of a class of which torch was told how to take it apart."""
    return type(value) in _pytree.SUPPORTED_NODES


def unflatten_tree(leaves: list[Any], spec: Any) -> Any:
    """Return the nested value of a structure."""
    return _pytree.tree_unflatten(leaves, spec)


def is_compiler_loaded() -> bool:
    """Return whether the compiler of torch was imported, without which nothing is compiled."""
    return COMPILER in sys.modules


def load_compiler() -> None:
    """Import the compiler of torch, and let it look for the functions of torch that it knows."""
    importlib.import_module(COMPILER).trace_rules.lookup(torch.relu)


def without_compiling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a function that has compiled what it runs, without that under the modes of a trace.

    What is compiled first under a mode is skipped for the rest of the process, also where there is none. Newer torch
    has one function for it, which is asked itself.
    """
    if COMPILES_CHOICES is not None:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return function(*args, **kwargs)

    return call


def is_compiled_class(kind: type) -> bool:
    """Return whether a class is that of modules that ``torch.compile`` made."""
    # Who has a compiled module has imported Dynamo; importing it takes a second.
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    optimized: Any = getattr(frames, "OptimizedModule", None)
    return isinstance(optimized, type) and issubclass(kind, optimized)


def root_being_traced(kind: type[nn.Module]) -> nn.Module | None:
    """Return the module whose forward somebody looks up on its class, as the tracer of torch.fx does with its root.

    To be called by a descriptor in its ``__get__``: the frame that reads ``type(root).forward`` is the one above it.

    Args:
        kind: The class that is asked.
    """
    root = sys._getframe(2).f_locals.get("root")
    return root if type(root) is kind else None


def remove_mode(mode: TorchFunctionMode) -> None:
    """Take a mode that this thread has entered away, wherever in the stack of modes it is."""
    _take_out(mode)


def _take_out(mode: TorchFunctionMode) -> tuple[bool, list[TorchFunctionMode]]:
    """Take a mode away; return whether it was there, and the modes above it, the first of them first."""
    above: list[Any] = []
    while (top := overrides._get_current_function_mode()) is not None:
        overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    above.reverse()
    for other in above:
        overrides._push_mode(other)
    return top is not None, above


@contextmanager
def beneath(mode: TorchFunctionMode) -> Generator[list[TorchFunctionMode]]:
    """Take a mode away while the context lasts, wherever in the stack of modes it is.

    Gives the modes that this thread has entered after it, which stay, the first of them first.
    """
    was_entered, above = _take_out(mode)
    try:
        yield above if was_entered else []
    finally:
        for _ in above if was_entered else ():
            overrides._pop_mode()
        if was_entered:
            for other in (mode, *above):
                overrides._push_mode(other)


_IN_C = ("_operator", "math", "torch", "torch._ops.aten")
_IN_PYTHON = (torch.Tensor.norm.__module__, "torch.functional", "torch.nn.functional")


def computes_by_itself(function: Any) -> bool:
    """Return whether a function is one of torch or Python that computes; others run what they are given."""
    home = str(getattr(function, "__module__", ""))
    if isinstance(function, FunctionType):
        return home in _IN_PYTHON
    return home in _IN_C or home.startswith("torch._C.")


_storage_id: Callable[[torch.Tensor], int] = torch._C._storage_id  # pyright: ignore[reportAttributeAccessIssue]


def is_real_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor, and does not only say so (``__class__``), as a mock does.

    Of others, torch would read memory where there is none.
    """
    return issubclass(type(value), torch.Tensor)


def storage_of(tensor: torch.Tensor) -> Any:
    """Return what identifies the memory of a tensor, None when it has none of its own; no mode hears of it."""
    if not is_real_tensor(tensor):
        return None
    try:
        return _storage_id(tensor)
    except (NotImplementedError, RuntimeError):  # Sparse, or without storage.
        return None


def storages_below(root: nn.Module) -> frozenset[Any]:
    """Return what identifies the memory of each parameter and buffer of a module and those below it."""
    _, modules = paths_and_modules_below(root)
    return frozenset(
        storage_of(tensor)
        for module in modules
        for table in (module._parameters, module._buffers)
        for tensor in table.values()
        if tensor is not None
    )


HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""What a tensor holds its hooks in: dicts, or None."""


hook_tables_of: Callable[[torch.Tensor], tuple[Any, ...]] = attrgetter(*HOOKS_OF_TENSORS)
"""Returns what a tensor has under these names."""


def storage_and_size_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """Return what identifies the memory of a tensor that has some of its own, and how many bytes it has."""
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def map_leaves(function: Callable[[Any], Any], values: Any) -> Any:
    """Return a nested value with what a function returns in the place of each leaf."""
    return _pytree.tree_map(function, values)


def is_fake(value: Any) -> bool:
    """Return whether a tensor has sizes, dtype and device, but no data."""
    return isinstance(value, FakeTensor)


def without_data(values: Any) -> tuple[FakeTensorMode, Any]:
    """Return nested values with tensors in them that have no data, and the context in which calls of torch take them.

    Parameters and other tensors may be used beside them.
    """
    mode = next((value.fake_mode for value in _pytree.tree_leaves(values) if is_fake(value)), None)
    if mode is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(value: Any) -> Any:
        return mode.from_tensor(value) if isinstance(value, torch.Tensor) and not is_fake(value) else value

    return mode, _pytree.tree_map(convert, values)


@contextmanager
def without_kept_casts() -> Generator[None]:
    """Keep what autocast has made of parameters apart from what it makes of them while the context lasts.

    It keeps casts until its outermost region ends, so that a model that runs on tensors without data inside of one
    would be given them when it runs on others later, and those with data when it ran before. Not to be entered by
    the mode itself: torch enters that while it holds the lock of these casts.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def is_about_missing_data(error: BaseException) -> bool:
    """Return whether an error says that a tensor without data was asked for its values."""
    said = ("its data is not allocated yet", ".tolist() is not supported for tensor subclasses")
    is_told = isinstance(error, RuntimeError) and any(text in str(error) for text in said)
    # TorchScript passes errors of Python on, without what they say.
    is_mute = isinstance(error, RuntimeError) and str(error).rstrip().endswith("\nRuntimeError:")
    return (
        is_told or is_mute or isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))
    )


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor is a view of to autograd, itself if it is none."""
    base = tensor._base
    return tensor if base is None else base


def keep_version(tensor: torch.Tensor) -> Callable[[], object]:
    """Return what makes autograd believe that a tensor was not written to from here on.

    Whoever calls it has put back what was written over.
    """
    return _unsafe_preserve_version_counter(tensor).__exit__


def refuses_missing_data(error: BaseException) -> bool:
    """Return whether an error says that there is no tensor without data of a kind, or no operator for it."""
    if isinstance(error, (UnsupportedFakeTensorException, UnsupportedOperatorException)):
        return True
    text = str(error)
    if "NestedTensorImpl" in text or "shape_env" in text:
        return True
    # Loops of torch ask for what knows the sizes, and numbers that are fixed have none.
    sizes = getattr(sys.modules.get("torch.fx.experimental.symbolic_shapes"), "ShapeEnv", None)
    if isinstance(error, AttributeError) and error.obj is None and hasattr(sizes, error.name):
        return True
    traceback = error.__traceback__
    while isinstance(error, (AssertionError, NotImplementedError)) and traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FAKE_TENSORS:
            return True
        traceback = traceback.tb_next
    return False


_FAKE_TENSORS = str(sys.modules[FakeTensor.__module__].__file__)


def with_data() -> AbstractContextManager[Any]:
    """Return a context in which tensors with data are computed with, whatever mode is around it."""
    return unset_fake_temporarily()


@contextmanager
def without_mode(mode: TorchFunctionMode) -> Generator[None]:
    """Take a mode away while the context lasts, if it is the one that hears of calls first."""
    is_off = take_off_calls(mode)
    try:
        yield
    finally:
        if is_off:
            put_on_calls(mode)


def are_calls_heard() -> bool:
    """Return whether a mode hears of calls of torch."""
    return _count_function_modes() > 0


def take_off_calls(mode: TorchFunctionMode) -> bool:
    """Take a mode away, if it is the one that hears of calls first; return whether it was."""
    if _count_function_modes() == 0:
        return False
    found = _pop_function_mode()
    if found is mode:
        return True
    _push_function_mode(found)
    return False


def put_on_calls(mode: TorchFunctionMode) -> None:
    """Put back a mode that hears of calls and was taken off."""
    _push_function_mode(mode)


def rank_of(tensor: torch.Tensor) -> int:
    """Return the number of dimensions of a tensor of torch's own class; no mode hears of the question."""
    with torch._C.DisableTorchFunction():
        return tensor.dim()


def can_be_rebuilt(value: Any) -> bool:
    """Return whether torch can take a nested value apart and put it together again."""
    leaves, spec = _pytree.tree_flatten(value)
    try:
        _pytree.tree_unflatten(leaves, spec)
        _pytree.tree_unflatten([None] * len(leaves), spec)
    except Exception:  # A class of its own may raise anything.
        return False
    return True


def take_off(mode: TorchDispatchMode | None) -> bool:
    """Take a mode that hears of operators away, if it is the one that hears of them first; return whether it was."""
    if mode is None or _count_dispatch_modes() == 0:
        return False
    found = _pop_dispatch_mode(None)
    if found is mode:
        return True
    put_on(found)
    return False


_not_compiled: Callable[..., Any] = torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage]


def _hear(
    mode: LightDispatchMode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return mode.on_operator(func, args, kwargs)


class LightDispatchMode(TorchDispatchMode):
    """Hears of operators without importing the compiler of torch, which takes a second, for the first of them.

    Torch wraps what hears of operators so that its compiler leaves it alone, and imports the compiler for that. Here it
    is wrapped where the compiler is there already.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of an operator."""
        if COMPILER in sys.modules:
            return _not_compiled(_hear, recursive=True)(self, func, args, kwargs or {})
        return self.on_operator(func, args, kwargs or {})

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of an operator, and run it."""
        raise NotImplementedError


def is_factory(function: Any) -> bool:
    """Return whether a function of torch makes tensors of the default dtype, on the default device, by default."""
    return function in _device_constructors()


def compiles_functions(target: Any) -> bool:
    """Return whether a target of calls compiles the functions that it is given, as `torch.cond` does."""
    if isinstance(target, HigherOrderOperator):
        return True
    code = getattr(inspect.unwrap(target), "__code__", None) if callable(target) else None
    # `torch.cond` says that it comes from torch itself.
    return code is not None and any(part in code.co_filename for part in _COMPILING)


_COMPILING = ("_higher_order_ops", "flex_attention")
"""In the paths of the files of torch with functions that compile other functions."""


def dispatch_modes() -> int:
    """Return how many modes hear of operators in this thread."""
    return _count_dispatch_modes()


def is_listening(mode: TorchDispatchMode) -> bool:
    """Return whether a mode hears of operators in this thread."""
    return any(_dispatch_mode_at(position) is mode for position in range(_count_dispatch_modes()))


def remove_modes_above(mode: TorchDispatchMode) -> None:
    """Take away what a program has put on top of a mode that hears of operators, and has left there."""
    count = _count_dispatch_modes()
    if count and _dispatch_mode_at(count - 1) is mode:
        return  # As nearly always; an interrupt between taking it away and putting it back would lose it.
    above: list[Any] = []
    while _count_dispatch_modes() > 0:
        top = _pop_dispatch_mode(None)
        if top is mode:
            put_on(top)
            return
        above.append(top)
    for other in reversed(above):  # The mode is not there at all.
        put_on(other)


def memory_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors whose memory holds the values of a tensor, none where there is no such memory."""
    if type(tensor) in _PLAIN_TENSORS and tensor.layout is torch.strided and not tensor.is_meta:
        return [tensor]
    if is_lazy(tensor) or isinstance(tensor, FakeTensor) or tensor.is_meta:
        return []
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [plain for name in names for plain in memory_of(getattr(tensor, name))]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if storage_of(tensor) is not None else []


_PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter})


def put_on(mode: Any) -> None:
    """Put back a mode that was taken off."""
    _push_dispatch_mode(mode)


MODULES_WITH_MODES = (torch, torch._C)
"""Where programs find the functions that tell of modes."""


def stands_in_for_scripts(stand_in: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Let TorchScript, which knows functions of torch by identity, take a stand-in for what it stands for."""
    operator = _builtins._find_builtin(function)
    if operator is not None:
        _builtins._register_builtin(stand_in, operator)


def calls_forward(call: Any) -> bool:
    """Return whether a function is how torch itself calls modules, which for those without hooks is their forward.

    Args:
        call: What ``nn.Module`` has, or had, as its ``__call__``.
    """
    # By their code: whoever puts a function around one of them gives it the same name.
    codes = [getattr(function, "__code__", None) for function in (call, nn.Module._call_impl)]
    names = [(getattr(code, "co_filename", ""), getattr(code, "co_name", "")) for code in codes]
    return names == _CALLS_OF_MODULES and not torch._C._get_tracing_state()


_CALLS_OF_MODULES = [
    (module_base._forward_unimplemented.__code__.co_filename, name)
    for name in ("_wrapped_call_impl", "_call_impl")
]


def call_beneath(
    calls: TorchFunctionMode, operators: TorchDispatchMode | None, function: Callable[[Any], Any], value: Any
) -> Any:
    """Call a function with two modes taken away, each if it is the one of its kind that hears first.

    Args:
        calls: Hears of calls of torch.
        operators: Hears of operators; None for none.
        function: What is called.
        value: What it is given.
    """
    are_heard = are_run = False
    # As `take_off_calls` and `take_off`, without the calls: the layers of a network are called so.
    if _count_function_modes():
        found = _pop_function_mode()
        are_heard = found is calls
        if not are_heard:
            _push_function_mode(found)
    if operators is not None and _count_dispatch_modes():
        found = _pop_dispatch_mode(None)
        are_run = found is operators
        if not are_run:
            _push_dispatch_mode(found)
    try:
        return function(value)
    finally:
        if are_run:
            _push_dispatch_mode(operators)
        if are_heard:
            _push_function_mode(calls)


class NamedSource(Source):
    """Where torch is told that a symbolic size comes from: the name that somebody gave it."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_text", name)

    @property
    def _name_template(self) -> str:
        return vars(self)["_text"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSource) and vars(other)["_text"] == vars(self)["_text"]

    def __hash__(self) -> int:
        return hash(vars(self)["_text"])


_to_functional: Callable[[torch.Tensor], torch.Tensor] = torch._to_functional_tensor  # pyright: ignore[reportPrivateImportUsage]
_from_functional: Callable[[torch.Tensor], torch.Tensor] = torch._from_functional_tensor  # pyright: ignore[reportPrivateImportUsage]
_is_functional: Callable[[torch.Tensor], bool] = torch._is_functional_tensor  # pyright: ignore[reportPrivateImportUsage]
_sync: Callable[[torch.Tensor], None] = torch._sync  # pyright: ignore[reportPrivateImportUsage]
_was_written: Callable[[torch.Tensor], bool] = torch._functionalize_has_data_mutation  # pyright: ignore[reportAttributeAccessIssue]
_was_written_without_grad: Callable[[torch.Tensor], bool] = (
    torch._functionalize_are_all_mutations_under_no_grad_or_inference_mode  # pyright: ignore[reportPrivateImportUsage]
)
_start_functionalization: Callable[..., None] = torch._enable_functionalization  # pyright: ignore[reportPrivateImportUsage]
_stop_functionalization: Callable[[], None] = torch._disable_functionalization  # pyright: ignore[reportPrivateImportUsage]


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Return a stand-in for a tensor: what is written to it in place makes new values, and leaves the tensor alone."""
    stand_in = _to_functional(tensor)
    if tensor.requires_grad:
        stand_in.requires_grad_()
    return stand_in


def is_functional(value: Any) -> bool:
    """Return whether a value is a stand-in of `to_functional`, or was computed from one."""
    return isinstance(value, torch.Tensor) and _is_functional(value)


def from_functional(stand_in: torch.Tensor) -> torch.Tensor:
    """Return the newest value of a stand-in; what is still to be worked out for it is worked out now."""
    _sync(stand_in)
    return _from_functional(stand_in)


def writes_hidden_from_autograd(stand_in: torch.Tensor) -> bool:
    """Return whether a stand-in was written to, and never while gradients were recorded."""
    _sync(stand_in)
    return _was_written(stand_in) and _was_written_without_grad(stand_in)


@contextmanager
def functionalisation() -> Generator[None]:
    """Let operators on stand-ins make new values instead of writing, and those made of others be heard as those."""
    with enable_python_dispatcher():
        _start_functionalization(reapply_views=True)
        try:
            yield
        finally:
            _stop_functionalization()


def is_implicit(overload: Any) -> bool:
    """Return whether an operator is made of others on every device, and has no gradient of its own."""
    # Questions about tensors, as for their sizes, are answered at once: operators that no dispatcher knows.
    if not isinstance(overload, OpOverload) or not torch._C._dispatch_has_kernel(overload.name()):
        return False
    return overload._can_decompose()
