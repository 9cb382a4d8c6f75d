"""The session contract on our own backends."""

from holdfast.testing.contract.sessions import SessionContract


class TestSessions(SessionContract):
    pass
