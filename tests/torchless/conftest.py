"""What the tests of the layers without torch share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import fxplug
from fxplug.codegen import compile_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Graph

# One run is like the next. To look for new counterexamples: --hypothesis-profile=explore.
settings.register_profile(
    "ci",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("ci"), max_examples=2000, derandomize=False)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def run() -> Callable[..., Any]:
    """Compile a graph and call the result: run(graph, *inputs, root=None, **named_inputs)."""

    def run_graph(graph: Graph, *inputs: Any, root: Any = None, **named_inputs: Any) -> Any:
        return compile_code(graph.python_code()).function(root, *inputs, **named_inputs)

    return run_graph


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """Run Python source in a fresh process that finds the tested fxplug, and return what it printed."""

    def run_source(source: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(Path(fxplug.__file__).parents[1])}
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", source],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run_source


@pytest.fixture
def no_hang() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which whatever does not end by itself becomes an error."""

    def interrupt(*_: object) -> None:
        message = "the call did not come to an end"
        raise TimeoutError(message)

    @contextlib.contextmanager
    def limit() -> Iterator[None]:
        if not hasattr(signal, "setitimer"):  # Windows: nothing is limited.
            yield
            return
        former = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)

    return limit
