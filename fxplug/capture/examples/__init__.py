"""Capturing a program while it runs on example inputs: the value mode, and the shape mode on tensors without data."""

from __future__ import annotations

from fxplug.capture.examples.tracer import ExampleTracer

__all__ = ["ExampleTracer"]
