"""A replay is the command that runs one case again: all that decides it is in it, and nothing that is secret."""

from __future__ import annotations

import shlex
from urllib.parse import quote, urlunsplit

from holdfast import dsn

POSTGRES = ("postgresql://", "postgres://")
HIDDEN = "***"
SHOWN = frozenset({
    "host", "port", "user", "dbname", "database", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs", "krbsrvname", "gsslib",
    "application_name", "options", "connect_timeout", "search_path",
})  # fmt: skip
"""Parameters of a URL that are no secret. Whatever else there is, may be one."""


def replay(url: str | None, fault: str, seed: int, *, pooler: str | None = None) -> str:
    """The command that runs one case again; without a URL it is the one of the environment."""
    words = ["holdfast", "torture"]
    if url is not None:
        words += ["--url", shown(url)]
    if pooler is not None:
        words += ["--pooler", pooler]
    return shlex.join([*words, "--fault", fault, "--seed", str(seed), "--cases", "1"])


def shown(url: str) -> str:
    """A URL as it may be shown: what is, or may be, secret is hidden."""
    if not url.startswith(POSTGRES):
        return url
    parts = dsn.parsed(url)
    if parts is None:
        return f"{POSTGRES[0]}{HIDDEN}"
    name, colon, _ = parts.user.partition(":")
    query = "&".join(
        f"{quote(key)}={quote(value, safe='/,:') if key in SHOWN else HIDDEN}" for key, value in parts.parameters
    )
    at = "@" if parts.user else ""
    return urlunsplit((parts.scheme, f"{name}{colon and ':' + HIDDEN}{at}{parts.hosts}", parts.path, query, ""))
