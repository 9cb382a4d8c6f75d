"""Names of this machine, and the name in a `Host` header. A server for this machine checks one against the other.

A page of another site may reach it under a name of its own (DNS rebinding).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def host_of(address: str) -> str:
    """Return the host name of a `Host` header, without the port and the brackets of an IPv6 address.

    >>> from holdfast.loopback import host_of
    >>> host_of("localhost:8321"), host_of("[::1]:8321"), host_of("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if any(one in address for one in "/?#@\\"):
        return ""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:
        return ""
