"""The contract of artifacts by kind and prefix, on our own backends."""

from holdfast.testing.contract.keyed_artifacts import KeyedArtifactContract


class TestKeyedArtifacts(KeyedArtifactContract):
    pass
