"""Values of `store.leases`."""

from holdfast.records.common import Token
from holdfast.records.leases import Lease, LeaseHolder, OnProcess, OnSession, Resource

__all__ = ["Lease", "LeaseHolder", "OnProcess", "OnSession", "Resource", "Token"]
