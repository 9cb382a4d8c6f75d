"""The contract of forks with a first turn, on our own backends."""

from holdfast.testing.contract.forks_with_turns import ForkWithTurnContract


class TestForksWithTurns(ForkWithTurnContract):
    pass
