"""Values of `store.maintenance`: reports, findings, diagnoses and explanations."""

from holdfast.records.diagnosis import Concern, Diagnosis, PostgresFacts, SqliteFacts, StoreFacts, StuckItems
from holdfast.records.explanations import Cause, Explanation, Holder
from holdfast.records.graph import VacuumReport
from holdfast.records.maintenance import Finding, GarbageReport, Progress, PruneReport, Stats, VerifyReport
from holdfast.records.restoring import RestoreReceipt

__all__ = [
    "Cause",
    "Concern",
    "Diagnosis",
    "Explanation",
    "Finding",
    "GarbageReport",
    "Holder",
    "PostgresFacts",
    "Progress",
    "PruneReport",
    "RestoreReceipt",
    "SqliteFacts",
    "Stats",
    "StoreFacts",
    "StuckItems",
    "VacuumReport",
    "VerifyReport",
]
