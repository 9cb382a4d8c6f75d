"""The public names of the top level, and nothing else: what a program types every day. The rest is in `MODULES`."""

from holdfast.blocking import BlockingStore
from holdfast.errors import (
    AlreadyTerminal,
    ClaimLost,
    Conflict,
    Corrupt,
    HeadConflict,
    HoldfastError,
    Incompatible,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    NotFound,
    SessionDeleted,
    SessionExists,
    TurnConflict,
    Unavailable,
    UnknownProcess,
    UnknownSession,
    WaitTimeout,
)
from holdfast.factory import ddl, open, open_blocking
from holdfast.owners import new_owner_id
from holdfast.paging import every
from holdfast.ports import Clock
from holdfast.records.checkpoints import Checkpoint
from holdfast.records.commits import Commit, Usage
from holdfast.records.common import Document, Page, Receipt, Scope
from holdfast.records.graph import Append, Node
from holdfast.records.limits import Limits
from holdfast.records.maintenance import RetentionPolicy
from holdfast.records.options import PostgresOptions, SqliteOptions
from holdfast.records.processes import ProcessRegistration
from holdfast.records.queue import WorkBatch, WorkClaim, WorkDraft
from holdfast.store import Session, Store
from holdfast.store.turn import Turn

__all__ = [
    "AlreadyTerminal",
    "Append",
    "BlockingStore",
    "Checkpoint",
    "ClaimLost",
    "Clock",
    "Commit",
    "Conflict",
    "Corrupt",
    "Document",
    "HeadConflict",
    "HoldfastError",
    "Incompatible",
    "InvalidRequest",
    "LeaseHeld",
    "LeaseLost",
    "Limits",
    "Node",
    "NotFound",
    "Page",
    "PostgresOptions",
    "ProcessRegistration",
    "Receipt",
    "RetentionPolicy",
    "Scope",
    "Session",
    "SessionDeleted",
    "SessionExists",
    "SqliteOptions",
    "Store",
    "Turn",
    "TurnConflict",
    "Unavailable",
    "UnknownProcess",
    "UnknownSession",
    "Usage",
    "WaitTimeout",
    "WorkBatch",
    "WorkClaim",
    "WorkDraft",
    "ddl",
    "every",
    "new_owner_id",
    "open",
    "open_blocking",
]
