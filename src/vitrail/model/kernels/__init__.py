"""Kernels of our own for training on a GPU, in Triton. Nothing here is imported where there is none."""
