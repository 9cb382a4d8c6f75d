"""The contract of turns on our own backends."""

from holdfast.testing.contract.turns import TurnContract


class TestTurns(TurnContract):
    pass
