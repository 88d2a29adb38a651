"""Every program of the folder `programs`, through torch.fx and fxplug."""

from __future__ import annotations


def test_values_gradients_and_state_equal_eager(comparison):
    comparison.check_values()


def test_interpreter_agrees_with_generated_code(comparison):
    comparison.check_interpreter()


def test_graph_equals_that_of_torch_fx(comparison):
    comparison.check_graph()


def test_source_equals_that_of_torch_fx(comparison_of_equal_graphs):
    comparison_of_equal_graphs.check_source()
