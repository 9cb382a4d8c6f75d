"""The PostgreSQL backend: one schema in a database that many processes share."""

from holdfast.backends.postgres.any_loop import AnyLoopPostgres
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.records.options import PostgresOptions

__all__ = ["AnyLoopPostgres", "PostgresBackend", "PostgresOptions"]
