"""The contract on second processes, on our own backends."""

from holdfast.testing.contract.second_process import SecondProcessContract


class TestSecondProcess(SecondProcessContract):
    pass
