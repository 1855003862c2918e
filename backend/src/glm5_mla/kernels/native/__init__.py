"""The CUDA kernel: its source, its build, and the C interface through which it is called."""
