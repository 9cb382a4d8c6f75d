"""Shipped cases assert with plain `assert`; pytest explains those only in modules that it is told of."""

import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")
