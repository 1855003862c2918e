"""MLA attention for SGLang that never casts the KV pool, and the clocks that show it."""

__version__ = "0.1.0"
