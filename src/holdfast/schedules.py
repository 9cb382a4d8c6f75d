"""Values of `store.schedules`."""

from holdfast.records.schedules import Firing, Schedule

__all__ = ["Firing", "Schedule"]
