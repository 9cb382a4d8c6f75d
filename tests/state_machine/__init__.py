"""Databases are led through the same random life, and whatever one answers, the others answer too."""
