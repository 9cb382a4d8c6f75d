"""The checkpoint contract on our own backends."""

from holdfast.testing.contract.checkpoints import CheckpointContract


class TestCheckpoints(CheckpointContract):
    pass
