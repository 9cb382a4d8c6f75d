"""Load, decide, apply: the only place where rules meet a transaction. Each function is one operation in one transaction."""
