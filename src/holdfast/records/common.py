"""The values that all families of records share: documents, receipts, pages, scopes and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

Document: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys.

It is returned as it was sent. Checkpoint components and configurations, which are named by their content, come back
with their keys sorted."""

T_co = TypeVar("T_co", covariant=True)


class Record(msgspec.Struct, frozen=True, kw_only=False):
    """A frozen value, equal by value."""


class KeywordFields(msgspec.StructMeta):
    """Names the fields in the error of a wrong constructor call. Decoding does not come through here."""

    if not TYPE_CHECKING:  # a checker knows the fields, and would lose them to this signature

        def __call__(cls, *args, **fields):  # noqa: D102, N805 - a metaclass
            try:
                return super().__call__(*args, **fields)
            except TypeError as error:
                reason = "takes keyword arguments only" if args else str(error).lower()
                names = ", ".join(cls.__struct_fields__)
                raise TypeError(f"{cls.__name__}: {reason}; the fields are {names}") from None


class KeywordRecord(Record, frozen=True, kw_only=True, metaclass=KeywordFields):
    """A frozen value that a caller builds with keyword arguments.

    >>> holdfast.WorkDraft("chat-42", ["hi"])  # type: ignore
    Traceback (most recent call last):
    TypeError: WorkDraft: takes keyword arguments only; the fields are payloads, session_id, ...
    """


class Receipt(Record, frozen=True, kw_only=True):
    """The proof that something was accepted.

    `position` says how far a server must have come to show it: pass the receipt, or its position as text, to
    `store.reading(after=...)`. Equality ignores the position: a replay returns a later one.
    """

    position: str = ""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "position")

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__struct_fields__ if name != "position")))


class Page(msgspec.Struct, Generic[T_co], frozen=True):
    """One page of a listing: its items, and the cursor to pass as `after=` for the next page (None at the end).

    Iterating over a page ends with the page. `holdfast.every` iterates over the whole listing.

    >>> page = holdfast.Page(items=("a", "b"), next=None)
    >>> list(page), len(page), page[0]
    (['a', 'b'], 2, 'a')
    """

    items: tuple[T_co, ...]
    next: str | None = None

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T_co:
        return self.items[index]


class Scope(Record, frozen=True):
    """A session, or one agent frame of it, as the owner of grants and the target of wakes."""

    session_id: str
    frame_id: str | None = None


class Token(str):
    """A secret that proves ownership of a claim or a lease. Its repr hides it from logs and listings."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Token(…)"
