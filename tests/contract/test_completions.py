"""The completion contract on our own backends."""

from holdfast.testing.contract.completions import CompletionContract


class TestCompletions(CompletionContract):
    pass
