"""Ready-made observers, and what an observer is told: `Observer` says when."""

from holdfast.observers.logs import Logging
from holdfast.observers.telemetry import OpenTelemetry
from holdfast.ports.observer import Observer, Tracing
from holdfast.records.observations import Observation

__all__ = ["Logging", "Observation", "Observer", "OpenTelemetry", "Tracing"]
