"""Values of `store.workers`, the registry. `holdfast.Worker` itself and its own values are in `holdfast.worker`."""

from holdfast.records.workers import Heartbeat, WorkerInfo, WorkerRelease

__all__ = ["Heartbeat", "WorkerInfo", "WorkerRelease"]
