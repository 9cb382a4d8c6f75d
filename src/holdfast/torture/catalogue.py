"""Lists every fault, in the order in which they are run."""

from __future__ import annotations

from holdfast.torture.blocks import KILLED_IN_BLOCK
from holdfast.torture.cancels import CANCELLED_STATEMENTS, CANCELLED_WAITS
from holdfast.torture.concurrent import CONCURRENT
from holdfast.torture.crashes import SERVER_CRASH
from holdfast.torture.cuts import CUT_APPEND_AND_COMPLETE, CUT_COMMIT_AND_CLAIM
from holdfast.torture.failover import FAILOVER
from holdfast.torture.faults import Fault
from holdfast.torture.forks import FORKED_OPEN
from holdfast.torture.fulldisk import FULL_DISK
from holdfast.torture.fullserver import FULL_SERVER
from holdfast.torture.interrupts import INTERRUPTED
from holdfast.torture.kills import KILLED_READER, KILLED_WRITER
from holdfast.torture.lagging_standby import FAILOVER_BEHIND
from holdfast.torture.locks import CROSS_COMMITS, EXHAUSTED_POOL, HELD_LOCKS
from holdfast.torture.misuse import CLOSED, FORKED
from holdfast.torture.poolers import POOLED
from holdfast.torture.power import POWER_LOSS, POWER_LOSS_AGAIN
from holdfast.torture.renewals import HELD_ROW
from holdfast.torture.stops import STOPPED_HOLDER
from holdfast.torture.wakes import WAKES
from holdfast.torture.within import WITHIN_CRASH
from holdfast.torture.worker_faults import (
    CRASHED_WORKER,
    CROWDED_WORKER,
    FAILED_OVER_WORKER,
    KILLED_WORKER,
    POOLED_WORKER,
    RESTARTED_WORKER,
    SKEWED_WORKER,
)

FAULTS: tuple[Fault, ...] = (
    CONCURRENT,
    WAKES,
    KILLED_WRITER,
    KILLED_READER,
    KILLED_IN_BLOCK,
    STOPPED_HOLDER,
    HELD_ROW,
    POWER_LOSS,
    POWER_LOSS_AGAIN,
    FULL_DISK,
    FULL_SERVER,
    SERVER_CRASH,
    WITHIN_CRASH,
    FAILOVER,
    FAILOVER_BEHIND,
    POOLED,
    CUT_COMMIT_AND_CLAIM,
    CUT_APPEND_AND_COMPLETE,
    CANCELLED_WAITS,
    CANCELLED_STATEMENTS,
    INTERRUPTED,
    HELD_LOCKS,
    CROSS_COMMITS,
    EXHAUSTED_POOL,
    FORKED,
    FORKED_OPEN,
    CLOSED,
    KILLED_WORKER,
    SKEWED_WORKER,
    RESTARTED_WORKER,
    CRASHED_WORKER,
    CROWDED_WORKER,
    FAILED_OVER_WORKER,
    POOLED_WORKER,
)
