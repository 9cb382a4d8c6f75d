"""The behaviour that all backends share, as pytest classes. Override the fixture `bench` and collect them."""

from importlib import import_module

from holdfast.extras import requiring

with requiring("testing", purpose="the contract suite"):
    import_module("pytest")

from holdfast.testing.contract.appends import AppendContract
from holdfast.testing.contract.artifacts import ArtifactContract
from holdfast.testing.contract.attachments import AttachmentContract
from holdfast.testing.contract.bench import Bench, Contract, LocalBench, ParkedWaiters, Parking
from holdfast.testing.contract.bounds import BoundsContract
from holdfast.testing.contract.byte_payloads import BytePayloadContract
from holdfast.testing.contract.checkpoints import CheckpointContract
from holdfast.testing.contract.claims import ClaimContract
from holdfast.testing.contract.commits import CommitContract
from holdfast.testing.contract.completions import CompletionContract
from holdfast.testing.contract.deletions import DeletionContract
from holdfast.testing.contract.deliveries import DeliveryContract
from holdfast.testing.contract.deltas import DeltaContract
from holdfast.testing.contract.erasures import ErasureContract
from holdfast.testing.contract.events import EventContract
from holdfast.testing.contract.exclusive_claims import ExclusiveClaimContract
from holdfast.testing.contract.explanations import ExplanationContract
from holdfast.testing.contract.feeds import FeedContract
from holdfast.testing.contract.forks import ForkContract
from holdfast.testing.contract.forks_with_turns import ForkWithTurnContract
from holdfast.testing.contract.grants import GrantContract
from holdfast.testing.contract.graph import GraphContract
from holdfast.testing.contract.groups import GroupContract
from holdfast.testing.contract.histories import HistoryContract
from holdfast.testing.contract.hostile import HostileInputContract
from holdfast.testing.contract.hostile_fuzz import HostileFuzzContract
from holdfast.testing.contract.inheritance import InheritanceContract
from holdfast.testing.contract.interrupts import InterruptContract
from holdfast.testing.contract.job_failures import JobFailureContract
from holdfast.testing.contract.job_waits import JobWaitContract
from holdfast.testing.contract.jobs import JobContract
from holdfast.testing.contract.keyed_artifacts import KeyedArtifactContract
from holdfast.testing.contract.labels import LabelContract
from holdfast.testing.contract.leases import LeaseContract
from holdfast.testing.contract.limit_races import LimitRaceContract
from holdfast.testing.contract.limits import LimitContract
from holdfast.testing.contract.logs import LogContract
from holdfast.testing.contract.maintenance import MaintenanceContract
from holdfast.testing.contract.moves import MoveContract
from holdfast.testing.contract.nested import NestedCallContract
from holdfast.testing.contract.outside import OutsideBytesContract
from holdfast.testing.contract.pages import PageContract
from holdfast.testing.contract.pauses import PauseContract
from holdfast.testing.contract.process_explanations import ProcessExplanationContract
from holdfast.testing.contract.processes import ProcessContract
from holdfast.testing.contract.queue import QueueContract
from holdfast.testing.contract.races import RaceContract
from holdfast.testing.contract.readings import ReadingContract
from holdfast.testing.contract.retries import RetryContract
from holdfast.testing.contract.run_claims import RunClaimContract
from holdfast.testing.contract.run_limits import RunLimitContract
from holdfast.testing.contract.run_waits import RunWaitContract
from holdfast.testing.contract.runs import RunContract
from holdfast.testing.contract.schedules import ScheduleContract
from holdfast.testing.contract.second_process import SecondProcessContract
from holdfast.testing.contract.sessions import SessionContract
from holdfast.testing.contract.shared_puts import SharedPutContract
from holdfast.testing.contract.started_runs import StartedRunContract
from holdfast.testing.contract.streams import StreamContract
from holdfast.testing.contract.stuck_work import StuckWorkContract
from holdfast.testing.contract.ticks import TickContract
from holdfast.testing.contract.transactions import TransactionContract
from holdfast.testing.contract.triggers import TriggerContract
from holdfast.testing.contract.turns import TurnContract
from holdfast.testing.contract.views import ViewContract
from holdfast.testing.contract.waits import WaitContract
from holdfast.testing.contract.wakes import WakeContract
from holdfast.testing.contract.workers import WorkerContract

__all__ = [
    "AppendContract",
    "ArtifactContract",
    "AttachmentContract",
    "Bench",
    "BoundsContract",
    "BytePayloadContract",
    "CheckpointContract",
    "ClaimContract",
    "CommitContract",
    "CompletionContract",
    "Contract",
    "DeletionContract",
    "DeliveryContract",
    "DeltaContract",
    "ErasureContract",
    "EventContract",
    "ExclusiveClaimContract",
    "ExplanationContract",
    "FeedContract",
    "ForkContract",
    "ForkWithTurnContract",
    "GrantContract",
    "GraphContract",
    "GroupContract",
    "HistoryContract",
    "HostileFuzzContract",
    "HostileInputContract",
    "InheritanceContract",
    "InterruptContract",
    "JobContract",
    "JobFailureContract",
    "JobWaitContract",
    "KeyedArtifactContract",
    "LabelContract",
    "LeaseContract",
    "LimitContract",
    "LimitRaceContract",
    "LocalBench",
    "LogContract",
    "MaintenanceContract",
    "MoveContract",
    "NestedCallContract",
    "OutsideBytesContract",
    "PageContract",
    "ParkedWaiters",
    "Parking",
    "PauseContract",
    "ProcessContract",
    "ProcessExplanationContract",
    "QueueContract",
    "RaceContract",
    "ReadingContract",
    "RetryContract",
    "RunClaimContract",
    "RunContract",
    "RunLimitContract",
    "RunWaitContract",
    "ScheduleContract",
    "SecondProcessContract",
    "SessionContract",
    "SharedPutContract",
    "StartedRunContract",
    "StreamContract",
    "StuckWorkContract",
    "TickContract",
    "TransactionContract",
    "TriggerContract",
    "TurnContract",
    "ViewContract",
    "WaitContract",
    "WakeContract",
    "WorkerContract",
]
