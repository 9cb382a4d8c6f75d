"""Backends: implement the ports over a database. They store and return rows, and decide nothing."""
