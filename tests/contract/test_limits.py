"""The contract of limits and pauses on our own backends."""

from holdfast.testing.contract.limit_races import LimitRaceContract
from holdfast.testing.contract.limits import LimitContract
from holdfast.testing.contract.pauses import PauseContract
from holdfast.testing.contract.run_limits import RunLimitContract


class TestLimits(LimitContract):
    pass


class TestRunLimits(RunLimitContract):
    pass


class TestPauses(PauseContract):
    pass


class TestLimitRaces(LimitRaceContract):
    pass
