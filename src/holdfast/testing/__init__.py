"""What users test their own runtimes and backends with: a clock to turn by hand, and the contract suite."""
