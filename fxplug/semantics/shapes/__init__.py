"""Shape functions: what calls of torch return, told from the sizes of what they are given.

Each takes what the function takes, with an `AbstractTensor` for each tensor, and says what it returns where it is known
that it raises no error. Where that is not known, the shape function raises one itself: most often `UnknownShapeError`,
but any other says the same. Sources are the documentation of ``torch``, ``torch.nn`` and ``torch.nn.functional``.
"""
