"""The contract of explanations and remedies on our own backends."""

from holdfast.testing.contract.explanations import ExplanationContract


class TestExplanations(ExplanationContract):
    pass
