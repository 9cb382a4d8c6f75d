"""Load, decide, apply: the only place where rules meet a transaction; each function is one step of one transaction."""
