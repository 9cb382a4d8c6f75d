"""A replay is the command that runs one case again: all that decides it is in it, and nothing that is secret."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

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
    try:
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return f"{POSTGRES[0]}{HIDDEN}"
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = "&".join(
        f"{quote(key)}={quote(value, safe='/,:') if key in SHOWN else HIDDEN}" for key, value in parameters
    )
    return urlunsplit((parts.scheme, f"{name}{colon and ':' + HIDDEN}{at}{hosts}", parts.path, query, ""))
