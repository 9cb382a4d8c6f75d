"""What children do: each function here runs in a process of its own and talks to its parent through a port."""

from __future__ import annotations

import holdfast
from holdfast.torture.children import Port
from holdfast.torture.clients import Client
from holdfast.torture.places import Place


def client(port: Port, place: Place, number: int, seed: int, calls: int) -> None:
    """Call the store at random, and tell what was seen."""
    with place.open() as store:
        one = Client(store, number, seed)
        port.send("ready")
        port.recv()
        one.run(calls)
        port.send((one.head.calls, one.lease.calls, one.queue.calls, one.log.calls, one.seen))
