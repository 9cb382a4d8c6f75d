"""The contract of explanations and remedies on our own backends."""

from holdfast.testing.contract.explanations import ExplanationContract
from holdfast.testing.contract.process_explanations import ProcessExplanationContract


class TestExplanations(ExplanationContract):
    pass


class TestProcessExplanations(ProcessExplanationContract):
    pass
