"""Drivers that run in the peers' environment. They import nothing but the peer, `work` and `child`."""
