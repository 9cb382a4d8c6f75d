"""The fuzzing of every public call runs on every backend."""

from holdfast.testing.contract import HostileFuzzContract


class TestHostileFuzz(HostileFuzzContract):
    pass
