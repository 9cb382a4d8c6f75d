"""The contract of turns among erasures, on our own backends."""

from holdfast.testing.contract.histories import HistoryContract


class TestHistories(HistoryContract):
    pass
