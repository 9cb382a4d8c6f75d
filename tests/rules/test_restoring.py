"""A restored value must agree with its own parts, or it is refused."""

from __future__ import annotations

import msgspec
import pytest

import holdfast
from holdfast.records.limits import Limits
from holdfast.rules import restoring


def subscription() -> holdfast.triggers.Subscription:
    with holdfast.open_blocking("memory:") as store:
        return store.triggers.subscribe(
            holdfast.triggers.SubscriptionDraft(source_type="cron", target=holdfast.processes.External())
        )


def test_a_subscription_keeps_its_number_and_its_times() -> None:
    given = subscription()
    row = restoring.check_subscription(given, Limits())
    assert (row.sequence, row.created_at_ms, row.enabled) == (1, given.created_at_ms, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"subscription_id": "subscription:0"}, {"handle": "trigger:7"}, {"subscription_id": f"subscription:{2**62}"}],
)
def test_a_subscription_whose_names_do_not_fit_its_number_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="subscription"):
        restoring.check_subscription(msgspec.structs.replace(subscription(), **wrong), Limits())
