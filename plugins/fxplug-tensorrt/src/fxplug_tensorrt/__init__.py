"""TensorRT lowering for fxplug: a backend that compiles parts of a graph with TensorRT for RTX."""
