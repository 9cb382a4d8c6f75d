"""Frozen values, one file a family; they know nothing of rules, clocks or databases."""
