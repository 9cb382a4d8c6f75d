"""Drivers that run in the project's own environment: Holdfast and the floor."""
