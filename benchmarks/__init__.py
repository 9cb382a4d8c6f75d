"""Benchmarks: each claim is a ratio from one run in which Holdfast, its peers and the floor take turns."""
