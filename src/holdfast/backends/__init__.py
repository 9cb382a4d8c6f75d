"""Databases behind the ports: they store and return rows, and decide nothing."""
