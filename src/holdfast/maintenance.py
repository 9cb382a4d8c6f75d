"""Values of `store.maintenance`: reports, findings and diagnoses."""

from holdfast.records.diagnosis import Concern, Diagnosis, PostgresFacts, SqliteFacts, StoreFacts
from holdfast.records.graph import VacuumReport
from holdfast.records.maintenance import Finding, GarbageReport, Progress, PruneReport, Stats, VerifyReport
from holdfast.records.restoring import RestoreReceipt

__all__ = [
    "Concern",
    "Diagnosis",
    "Finding",
    "GarbageReport",
    "PostgresFacts",
    "Progress",
    "PruneReport",
    "RestoreReceipt",
    "SqliteFacts",
    "Stats",
    "StoreFacts",
    "VacuumReport",
    "VerifyReport",
]
