"""The contract of labels, prefixes and newest changes on our own backends."""

import pytest

from holdfast.backends.postgres.transaction import sessions as postgres
from holdfast.backends.sqlite.transaction import sessions as sqlite
from holdfast.testing.contract.bench import Contract
from holdfast.testing.contract.labels import LabelContract


class TestLabels(LabelContract):
    pass


class TestFrequentLabels(Contract):
    """Labels of more sessions than a listing sorts: it goes through all sessions in its order instead."""

    @pytest.fixture(autouse=True)
    def every_label_is_frequent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (sqlite, postgres):
            monkeypatch.setattr(module, "FEW", 0)

    test_all_filters_combine_in_every_order = LabelContract.test_all_filters_combine_in_every_order
