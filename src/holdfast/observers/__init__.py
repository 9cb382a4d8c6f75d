"""Observers that everybody can use; what each is told, and when, is `holdfast.ports.observing`'s."""
