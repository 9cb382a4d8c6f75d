"""The contract of moves on our own backends."""

from holdfast.testing.contract.moves import MoveContract


class TestMoves(MoveContract):
    pass
