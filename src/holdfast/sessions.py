"""Values of `store.sessions` and of a session: graphs, checkpoints, receipts and views."""

from holdfast.records.checkpoints import CheckpointManifest, Component, Ref
from holdfast.records.commits import CommitReceipt, NodesReceipt, Revision, SessionView
from holdfast.records.graph import (
    ActivePath,
    AgentFrame,
    FullGraph,
    Graph,
    GraphDelta,
    IdRange,
    ReadScope,
    ReplaceGraph,
    Unchanged,
)
from holdfast.records.sessions import Child, Relation, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.records.streams import StreamCommit, StreamDelta, StreamItem, StreamVoid

__all__ = [
    "ActivePath",
    "AgentFrame",
    "CheckpointManifest",
    "Child",
    "CommitReceipt",
    "Component",
    "FullGraph",
    "Graph",
    "GraphDelta",
    "IdRange",
    "NodesReceipt",
    "ReadScope",
    "Ref",
    "Relation",
    "ReplaceGraph",
    "Revision",
    "Root",
    "SessionDeletionReport",
    "SessionMeta",
    "SessionSummary",
    "SessionView",
    "StreamCommit",
    "StreamDelta",
    "StreamItem",
    "StreamVoid",
    "Unchanged",
]
