"""The artifact contract on our own backends."""

from holdfast.testing.contract.artifacts import ArtifactContract


class TestArtifacts(ArtifactContract):
    pass
