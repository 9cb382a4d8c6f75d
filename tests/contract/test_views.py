"""The contract of views of several revisions on our own backends."""

from __future__ import annotations

from holdfast.testing.contract.views import ViewContract


class TestViews(ViewContract):
    pass
