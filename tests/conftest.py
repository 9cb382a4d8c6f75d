"""Shipped cases assert with plain `assert`; pytest explains those only in modules that it is told of."""

from __future__ import annotations

import os
import random

import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")


def pytest_configure() -> None:
    """One seed for the whole run, workers included; `HOLDFAST_SEED=<seed>` runs it again."""
    os.environ.setdefault("HOLDFAST_SEED", f"{random.SystemRandom().getrandbits(48):x}")


def pytest_report_header() -> str:
    """Print the seed where nothing captures it."""
    return f"holdfast seed: {os.environ['HOLDFAST_SEED']}"
