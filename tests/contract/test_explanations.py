"""The contract of explanations and remedies on our own backends."""

from holdfast.testing.contract.explanations import ExplanationContract
from holdfast.testing.contract.process_explanations import ProcessExplanationContract
from holdfast.testing.contract.stuck_work import StuckWorkContract


class TestExplanations(ExplanationContract):
    pass


class TestProcessExplanations(ProcessExplanationContract):
    pass


class TestStuckWork(StuckWorkContract):
    pass
