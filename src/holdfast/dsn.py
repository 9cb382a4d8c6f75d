"""Parse the URLs of servers. A label shows nothing of a URL that is ambiguous: its host may be part of the password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidRequest

SCHEMES = ("postgresql://", "postgres://")
UNNAMED = "PostgreSQL"
FORM = "postgresql://user:password@host:port/database"
HOST = r"(?:[\w.%-]+|\[[0-9A-Fa-f:.%]+\])?(?::[0-9]+)?"
HOSTS = re.compile(f"{HOST}(?:,{HOST})*")
PORT = re.compile(r":([0-9]+)(?:,|$)")
HIGHEST_PORT = 65_535
SOCKETS = re.compile(r"/[^@:,]*(?:,/[^@:,]*)*")
DATABASE = re.compile(r"[^@&;=:\s]*")
ANY_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?:", re.IGNORECASE)
KEYWORDS = re.compile(
    r"(?:^|[\s&;?])(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=", re.IGNORECASE
)
CREDENTIALS = re.compile(r"(?:\w*//)?[^/@\s]*:[^@]*@")
SECRET = re.compile(r"password\s*=|:/{1,2}[^/@]*:[^@]*@", re.IGNORECASE)
"""Matches a password by its name, or the user and password of a URL; the slashes of a path may be folded to one."""
CREDENTIALS_IN_PATH = re.compile(r"\w+:/{1,2}[^/@]*:[^@]*@[^\s:'\"]*")


class Parts(NamedTuple):
    """A URL of a server that was parsed without ambiguity."""

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
    """Split a URL of a server, or return None if an unescaped character makes it ambiguous."""
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
        # Legal, but perhaps a password that contains a question mark.
        return Parts(parts.scheme, "", "", "", [("host", UNNAMED)])
    return Parts(parts.scheme, user, hosts, parts.path, parameters)


def _names_a_database(path: str) -> bool:
    """Return True if a path is nothing but a name: parameters in it may hold a password."""
    return DATABASE.fullmatch(path) is not None and SECRET.search(unquote(path)) is None


def _names_hosts(value: str) -> bool:
    return HOSTS.fullmatch(value) is not None or SOCKETS.fullmatch(value) is not None


def _ports(parts: Parts) -> Iterator[tuple[str, bool]]:
    """Yield the ports of a URL, and whether each is certainly a port: a lone colon may precede a password."""
    for port in PORT.findall(parts.hosts):
        yield port, bool(parts.user)
    for key, value in parts.parameters:
        if key == "host":
            yield from ((port, True) for port in PORT.findall(value))
        if key == "port":
            yield from ((port, port.isdecimal()) for port in value.split(","))


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and 1 <= int(text) <= HIGHEST_PORT


def check(field: str, url: str) -> str:
    """Return the URL of a server. An ambiguous one is `InvalidRequest`, before any connection is made."""
    if not url.startswith(SCHEMES):
        raise InvalidRequest(field, "must begin with postgresql:// or postgres://")
    parts = parsed(url)
    for port, is_certain in () if parts is None else _ports(parts):
        if not _is_port(port):
            named = f"port {port}" if is_certain else "its port"
            raise InvalidRequest(field, f"{named} is not from 1 to {HIGHEST_PORT}: use {FORM}")
    if parts is None:
        raise InvalidRequest(
            field,
            f"is not a valid URL: use {FORM}, with @ / ? # [ ] in user and password written as %40 %2F %3F %23 %5B %5D "
            "and : ; & = in the database as %3A %3B %26 %3D; parameters follow a ?",
        )
    return url


def label_of(url: str) -> str:
    """Return host, port and database of a URL, safe for messages; nothing of an ambiguous one."""
    parts = parsed(url)
    return UNNAMED if parts is None else parts.label


def refuse_server(field: str, url: str) -> None:
    """Refuse the name of a file that can only be meant as the address of a server."""
    if ANY_POSTGRES.match(url) or KEYWORDS.search(url) or CREDENTIALS.match(url):
        raise InvalidRequest(
            field, f"looks like the address of a server: write it as {FORM}, or a path as sqlite:<path>"
        )


def refuse_secret(field: str, path: str) -> None:
    """Refuse a path that appears to hold a password, before a file or a message repeats it."""
    if SECRET.search(path):
        raise InvalidRequest(
            field, f"holds a password, which the name of a file must not: write the address of a server as {FORM}"
        )


def without_secrets(text: str, words: list[str]) -> str:
    """Replace those of the words in a text that may hold a password."""
    for word in words:
        for part in (word, word.partition("=")[2]):
            if part and _may_hold_a_secret(part):
                # A path of such a word has folded slashes, and a message may show only the beginning of it.
                folded = str(PurePath(part))
                for form in (part, repr(part)[1:-1], folded, repr(folded)[1:-1]):
                    text = text.replace(form, "…")
                text = CREDENTIALS_IN_PATH.sub("…", text)
    return text


def _may_hold_a_secret(word: str) -> bool:
    return "://" in word or KEYWORDS.search(word) is not None or ("@" in word and (":" in word or "/" in word))
