"""Tools to test your own runtimes and backends: a manual clock, and the contract suite."""
