"""Ready-made observers, and the values that an `Observer` receives."""

from holdfast.observers.logs import Logging
from holdfast.observers.telemetry import OpenTelemetry
from holdfast.ports.observer import Observer, Tracing
from holdfast.records.observations import Observation

__all__ = ["Logging", "Observation", "Observer", "OpenTelemetry", "Tracing"]
