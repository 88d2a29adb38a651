"""Benchmarks: what fxplug costs next to torch.fx, measured in one process. See ``README.md`` beside this file."""
