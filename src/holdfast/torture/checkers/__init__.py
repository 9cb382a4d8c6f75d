"""Checkers: pure functions from observations to a list of problems, without a store or a clock."""
