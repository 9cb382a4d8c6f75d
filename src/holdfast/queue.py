"""Values of `store.queue`. `holdfast.WorkDraft`, `WorkClaim` and `WorkBatch` are at the top level."""

from holdfast.records.queue import (
    Boundary,
    Group,
    KindLimit,
    MergeKey,
    QueueDepth,
    WorkCompletion,
    WorkItem,
    WorkReceipt,
    WorkState,
)

__all__ = [
    "Boundary",
    "Group",
    "KindLimit",
    "MergeKey",
    "QueueDepth",
    "WorkCompletion",
    "WorkItem",
    "WorkReceipt",
    "WorkState",
]
