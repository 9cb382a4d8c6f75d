"""The contract on races, on our own backends."""

from holdfast.testing.contract.races import RaceContract


class TestRaces(RaceContract):
    pass
