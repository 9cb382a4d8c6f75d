"""The graph contract on our own backends."""

from holdfast.testing.contract.graph import GraphContract


class TestGraphs(GraphContract):
    pass
