"""Building engines: from a network and options to the bytes that a runtime reads."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxplug.errors import BackendError, ConfigError, did_you_mean
from fxplug_tensorrt._trt import why_engines_do_not_run

if TYPE_CHECKING:
    from fxplug_tensorrt.conversion import Converted
    from fxplug_tensorrt.options import TensorRTOptions

__all__ = ["build_plan"]

_MIB = 1 << 20
_LONGEST = 400


def build_plan(converted: Converted, options: TensorRTOptions) -> bytes:
    """Return the engine of a network, serialised. No GPU is needed where ``options.targets`` names some.

    Args:
        converted: The network.
        options: What the engine is to be like.

    Raises:
        BackendError: TensorRT refuses the network, or runs out of memory.
        ConfigError: The options name a GPU or a file that cannot be used.
    """
    build = converted.build
    config = build.builder.create_builder_config()
    _set_limits(build.trt, config, options)
    _set_targets(build.trt, config, options)
    # Else an inspector tells names of layers alone.
    config.profiling_verbosity = build.trt.ProfilingVerbosity.DETAILED
    if options.refit:
        config.set_flag(build.trt.BuilderFlag.REFIT)
    cache = _set_timing_cache(config, options)
    if options.batch_sizes:
        _add_profile(converted, config, options.batch_sizes)
    before = len(build.log.complaints)
    plan = build.builder.build_serialized_network(build.net, config)
    if plan is None:
        raise _refusal(build.log.complaints[before:], options)
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            cache.write_bytes(bytes(config.get_timing_cache().serialize()))
    return bytes(plan)


def _set_limits(trt: Any, config: Any, options: TensorRTOptions) -> None:
    if options.workspace_mib:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * _MIB)
    if options.optimization_level >= 0:
        config.builder_optimization_level = options.optimization_level
    if options.precision != "tf32":
        config.clear_flag(trt.BuilderFlag.TF32)
    else:
        config.set_flag(trt.BuilderFlag.TF32)


def _set_targets(trt: Any, config: Any, options: TensorRTOptions) -> None:
    if not options.targets:
        return
    known = getattr(trt, "ComputeCapability", None)
    if known is None:
        raise ConfigError(
            f"Cannot use targets={options.targets!r}: this TensorRT builds for the GPU at hand only. Leave the option "
            "out, or install TensorRT for RTX."
        )
    names = [name for name in known.__members__ if name not in {"NONE", "CURRENT"}]
    config.num_compute_capabilities = len(options.targets)
    for number, target in enumerate(options.targets):
        if target not in names:
            raise ConfigError(
                f"Cannot build with TensorRT for {target!r}: it is none of the GPUs that this version builds for, "
                f"{', '.join(names)}. {did_you_mean(target, names)}"
            )
        config.set_compute_capability(getattr(known, target), number)


def _set_timing_cache(config: Any, options: TensorRTOptions) -> Path | None:
    if not options.timing_cache:
        return None
    path = Path(options.timing_cache)
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise ConfigError(
            f"Cannot use timing_cache={options.timing_cache!r}: {error.strerror or error}. Name a file."
        ) from error
    with warnings.catch_warnings():
        # TensorRT for RTX measures nothing while it builds; its calls are there, and do nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = config.create_timing_cache(data)
        taken = cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)
    if not taken:
        raise ConfigError(
            f"Cannot use timing_cache={options.timing_cache!r}: TensorRT does not read what is in it, as it is of "
            "another version or device, or damaged. Delete the file."
        )
    return path


def _add_profile(converted: Converted, config: Any, sizes: tuple[int, ...]) -> None:
    profile = converted.build.builder.create_optimization_profile()
    for number in range(converted.build.net.num_inputs):
        tensor = converted.build.net.get_input(number)
        shape = tuple(tensor.shape)
        wanted = [tuple(size if part < 0 else part for part in shape) for size in sizes]
        profile.set_shape(tensor.name, *wanted)
    config.add_optimization_profile(profile)


def _refusal(complaints: list[str], options: TensorRTOptions) -> BackendError:
    """Return the error for an engine that was not built."""
    reason = " ".join(complaints[-1].split())[:_LONGEST] if complaints else "it gives no reason"
    if any("memory" in text.lower() and "out of" in text.lower() for text in complaints):
        return BackendError(
            f"Cannot build with TensorRT: it runs out of memory ({reason}). Set workspace_mib, lower smaller parts, or "
            "use a machine with more."
        )
    if options.refit and why_engines_do_not_run():
        return BackendError(
            f"Cannot build with TensorRT and refit=True: engines that take new weights are built where a GPU runs "
            f"them, also for those that targets names, and here none does ({reason}). Build on such a machine, or "
            "leave the option out."
        )
    return BackendError(f"Cannot build with TensorRT: it refuses the network: {reason}")
