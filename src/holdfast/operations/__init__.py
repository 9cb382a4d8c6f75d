"""Operations: load, decide, apply. Only this package joins rules and a transaction.

Each function is one step of one transaction.
"""
