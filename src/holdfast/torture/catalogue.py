"""Every fault, in the order in which they are run."""

from __future__ import annotations

from holdfast.torture.concurrent import CONCURRENT
from holdfast.torture.crashes import SERVER_CRASH
from holdfast.torture.faults import Fault
from holdfast.torture.kills import KILLED_READER, KILLED_WRITER
from holdfast.torture.power import POWER_LOSS, POWER_LOSS_AGAIN
from holdfast.torture.stops import STOPPED_HOLDER
from holdfast.torture.wakes import WAKES

FAULTS: tuple[Fault, ...] = (
    CONCURRENT,
    WAKES,
    KILLED_WRITER,
    KILLED_READER,
    STOPPED_HOLDER,
    POWER_LOSS,
    POWER_LOSS_AGAIN,
    SERVER_CRASH,
)
