"""Runs the same random calls on several databases, which must all give the same answers."""
