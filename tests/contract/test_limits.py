"""The contract of limits and pauses on our own backends."""

from holdfast.testing.contract.limit_races import LimitRaceContract
from holdfast.testing.contract.limits import LimitContract
from holdfast.testing.contract.pauses import PauseContract


class TestLimits(LimitContract):
    pass


class TestPauses(PauseContract):
    pass


class TestLimitRaces(LimitRaceContract):
    pass
