"""The contract of transactions on our own backends."""

from holdfast.testing.contract.transactions import TransactionContract


class TestTransactions(TransactionContract):
    pass
