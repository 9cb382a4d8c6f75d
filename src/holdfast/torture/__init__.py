"""Faults as values: each names its invariants and its backends, and runs itself in a scratch place of its own.

`holdfast torture` runs them against a database of yours; the tests run the same code on every push. The checkers in
`holdfast.torture.checkers` are pure and can be used on histories of your own.
"""
