"""Builds the command that runs one case again, with everything that decides the case and without secrets."""

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
"""Parameters of a URL that are not secret. Any other one may be."""


def replay(url: str | None, fault: str, seed: int, *, pooler: str | None = None) -> str:
    """Return the command that runs one case again. Without a URL it uses that of the environment."""
    words = ["holdfast", "torture"]
    if url is not None:
        words += ["--url", shown(url)]
    if pooler is not None:
        words += ["--pooler", pooler]
    return shlex.join([*words, "--fault", fault, "--seed", str(seed), "--cases", "1"])


def shown(url: str) -> str:
    """Return a URL with everything hidden that is, or may be, secret."""
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
