"""Nothing of a URL is shown unless all of it parses: what is taken for a host may be a part of the password."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidRequest

SCHEMES = ("postgresql://", "postgres://")
UNNAMED = "PostgreSQL"
FORM = "postgresql://user:password@host:port/database"
HOST = r"(?:[\w.%-]+|\[[0-9A-Fa-f:.%]+\])?(?::[0-9]{1,5})?"
HOSTS = re.compile(f"{HOST}(?:,{HOST})*")
SOCKETS = re.compile(r"/[^@:,]*(?:,/[^@:,]*)*")
DATABASE = re.compile(r"[^@&;=:\s]*")
ANY_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?:", re.IGNORECASE)
KEYWORDS = re.compile(
    r"(?:^|[\s&;?])(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=", re.IGNORECASE
)
CREDENTIALS = re.compile(r"(?://)?[^/@\s]*:[^@]*@")
SECRET = re.compile(r"password\s*=|:/{1,2}[^/@]*:[^@]*@", re.IGNORECASE)
"""A password by its name, or the user and password of a URL; the slashes of a path may have been folded to one."""


class Parts(NamedTuple):
    """A URL of a server whose every part is known for what it is."""

    scheme: str
    user: str
    hosts: str
    path: str
    parameters: list[tuple[str, str]]

    @property
    def label(self) -> str:
        """Host, port and database, or several of them."""
        named = (value for key, value in self.parameters if key == "host")
        return (self.hosts or next(named, "localhost")) + self.path


def parsed(url: str) -> Parts | None:
    """Split a URL of a server, or return None if a character that is not escaped makes it ambiguous."""
    try:
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        return None
    user, at, hosts = parts.netloc.rpartition("@")
    clean = url.startswith(SCHEMES) and url.isprintable() and "#" not in url and "@" not in parts.path
    if not clean or HOSTS.fullmatch(hosts) is None or not _names_a_database(parts.path):
        return None
    if any(key == "host" and not _names_hosts(value) for key, value in parameters):
        return None
    if not at and "@" in parts.query:
        # Legal, and perhaps a password with a question mark in it.
        return Parts(parts.scheme, "", "", "", [("host", UNNAMED)])
    return Parts(parts.scheme, user, hosts, parts.path, parameters)


def _names_a_database(path: str) -> bool:
    """Report whether a path is nothing but a name: parameters that stand in it may hold a password."""
    return DATABASE.fullmatch(path) is not None and SECRET.search(unquote(path)) is None


def _names_hosts(value: str) -> bool:
    return HOSTS.fullmatch(value) is not None or SOCKETS.fullmatch(value) is not None


def check(field: str, url: str) -> str:
    """Return the URL of a server; an ambiguous one is `InvalidRequest`, before anything is connected to."""
    if not url.startswith(SCHEMES):
        raise InvalidRequest(field, "must begin with postgresql:// or postgres://")
    if parsed(url) is None:
        raise InvalidRequest(
            field,
            f"is not a valid URL: use {FORM}, with @ / ? # [ ] in user and password written as %40 %2F %3F %23 %5B %5D "
            "and : ; & = in the database as %3A %3B %26 %3D; parameters follow a ?",
        )
    return url


def label_of(url: str) -> str:
    """Host, port and database of a URL, which a message may say; of an ambiguous one nothing."""
    parts = parsed(url)
    return UNNAMED if parts is None else parts.label


def refuse_server(field: str, url: str) -> None:
    """Refuse the name of a file that can only be meant as the address of a server."""
    if ANY_POSTGRES.match(url) or KEYWORDS.search(url) or CREDENTIALS.match(url):
        raise InvalidRequest(
            field, f"looks like the address of a server: write it as {FORM}, or a path as sqlite:<path>"
        )


def refuse_secret(field: str, path: str) -> None:
    """Refuse a path that holds a password by the look of it, before a file or a message repeats it."""
    if SECRET.search(path):
        raise InvalidRequest(
            field, f"holds a password, which the name of a file must not: write the address of a server as {FORM}"
        )


def without_secrets(text: str, words: list[str]) -> str:
    """Replace those of the words in a text that may hold a password."""
    for word in words:
        for said in (word, word.partition("=")[2]):
            if said and _may_hold_a_secret(said):
                for form in (said, repr(said)[1:-1]):
                    text = text.replace(form, "…")
    return text


def _may_hold_a_secret(word: str) -> bool:
    return "://" in word or KEYWORDS.search(word) is not None or ("@" in word and (":" in word or "/" in word))
