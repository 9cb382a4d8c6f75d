"""The memory backend: dictionaries with staged writes. The reference for tests of the other backends."""

from holdfast.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
