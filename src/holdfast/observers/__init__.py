"""Ready-made observers. `holdfast.ports.observer` defines what an observer is told, and when."""
