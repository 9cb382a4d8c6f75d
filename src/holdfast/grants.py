"""Values of `store.grants`."""

from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor

__all__ = ["Grant", "GrantedProcess", "HandleDescriptor"]
