"""The reference backend: dictionaries with staged writes, which the other backends are compared with."""

from holdfast.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
