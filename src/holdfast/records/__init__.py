"""Frozen public values, one file per family. They do not depend on rules, clocks or databases."""
