"""Ready-made observers. `holdfast.ports.observing` defines what an observer is told, and when."""
