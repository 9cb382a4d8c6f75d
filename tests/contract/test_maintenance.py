"""The maintenance contract on our own backends."""

from holdfast.testing.contract.maintenance import MaintenanceContract


class TestMaintenance(MaintenanceContract):
    pass
