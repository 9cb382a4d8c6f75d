"""What every backend must do alike, as pytest classes: override the fixture `bench` and collect them."""

from holdfast.testing.contract.bench import Bench, Contract, LocalBench
from holdfast.testing.contract.leases import LeaseContract

__all__ = ["Bench", "Contract", "LeaseContract", "LocalBench"]
