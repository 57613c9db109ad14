"""A step's small operations fused into a few kernels in C, compiled for this machine."""
