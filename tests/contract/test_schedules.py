"""The schedule contract on our own backends."""

from holdfast.testing.contract.schedules import ScheduleContract


class TestSchedules(ScheduleContract):
    pass
