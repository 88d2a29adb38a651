"""Graphs of torch.fx and torch.export, in and out."""
