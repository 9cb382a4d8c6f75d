"""Logs each operation as one record: the level says how it ended, the fields hold the observation."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.log import DEBUG, ERROR, INFO, WARNING, logger_of
from holdfast.ports.observer import End
from holdfast.records.observations import Observation, OperationOutcome

LEVELS: Final[dict[OperationOutcome, int]] = {"ok": DEBUG, "cancelled": DEBUG, "refused": INFO, "failed": WARNING}
"""Refusals are normal among several workers and need no alarm. Failures may."""

ALWAYS_ERRORS = frozenset({"Corrupt", "DurabilityUncertain"})
"""Failures that do not go away by themselves."""


class Logging:
    """Logs each operation to the standard logger `holdfast.operations`: one record each, at its end.

    DEBUG: done, or cancelled by its caller. INFO: refused. WARNING: failed. ERROR: failed, and stored data is in doubt.
    The fields of `Observation` are attributes of the record, with `duration_ms` for the duration.

    >>> import logging
    >>> logging.getLogger("holdfast").setLevel(logging.DEBUG)
    >>> with holdfast.open_blocking("memory:", observe=holdfast.observers.Logging()) as observed:
    ...     session = observed.sessions.create("chat-42")
    """

    def __init__(self, logger: str = "holdfast.operations") -> None:
        self._logger = logger_of(logger)

    def begin(self, operation: str, system: str, *, steps: bool) -> End | None:  # noqa: ARG002 - all are logged at the end
        """Skip all measurement for a logger that would drop even errors."""
        return self._log if self._logger.isEnabledFor(ERROR) else None

    def _log(self, observation: Observation) -> None:
        level = ERROR if observation.error_class in ALWAYS_ERRORS else LEVELS[observation.outcome]
        if self._logger.isEnabledFor(level):
            self._logger.log(level, *_message(observation), extra=_fields(observation))


def _message(observation: Observation) -> tuple[object, ...]:
    if observation.error_class is None:
        return "%s %s in %.3f ms", observation.operation, observation.outcome, observation.duration_ms
    return (
        "%s %s by %s in %.3f ms",
        observation.operation,
        observation.outcome,
        observation.error_class,
        observation.duration_ms,
    )


def _fields(observation: Observation) -> dict[str, object]:
    fields = msgspec.structs.asdict(observation)
    del fields["duration_ns"]
    return {**fields, "duration_ms": observation.duration_ms}
