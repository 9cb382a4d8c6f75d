"""The serialiser of a saver by default: LangGraph's own, which loads only types that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from langgraph.checkpoint.serde import _msgpack as msgpack_types
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.errors import InvalidRequest

CONSTRUCTORS = range(7)
"""Extension codes of msgpack whose data begin with a module and a name."""
KNOWN = frozenset(
    {*msgpack_types.SAFE_MSGPACK_TYPES, *((method[0], method[1]) for method in msgpack_types.SAFE_MSGPACK_METHODS)}
)
"""Types that LangGraph itself takes to be safe."""


class StrictSerializer(JsonPlusSerializer):
    """Refuses a stored value of an unknown type, and names the type. Never unpickles, and imports only known types.

    Messages of LangChain, the types of LangGraph itself and common ones of the standard library are known.

    >>> from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    >>> from holdfast.adapters.langgraph import StrictSerializer
    >>> from fractions import Fraction
    >>> StrictSerializer(allow=[Fraction]).allowed
    frozenset({('fractions', 'Fraction')})
    """

    def __init__(self, *, allow: Iterable[type | tuple[str, ...]] = ()) -> None:
        self.allowed = frozenset(_name_of(one) for one in allow)
        super().__init__(allowed_msgpack_modules=sorted(self.allowed) or None)
        self._heads: set[bytes] = set()
        """The first bytes of values, with both names, that were found to be of an allowed type."""
        self._refusals: ContextVar[InvalidRequest | None] = ContextVar("refusal", default=None)
        self._unpack_ext_hook: Callable[[int, bytes], Any] = self._checking(self._unpack_ext_hook)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> StrictSerializer:
        """Return a serialiser that loads further types."""
        return StrictSerializer(allow=[*self.allowed, *extra_allowlist])

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value."""
        try:
            return super().loads_typed(data)
        except ValueError as error:
            # The decoder reports that the hook has raised, and drops the reason.
            refusal = self._refusals.get()
            if refusal is None:
                raise
            self._refusals.set(None)
            raise refusal from error

    def _checking(self, hook: Callable[[int, bytes], Any]) -> Callable[[int, bytes], Any]:
        def checked(code: int, data: bytes) -> Any:
            if code in CONSTRUCTORS and (head := _head(data)) not in self._heads:
                module, name = _first_two(data)
                if (module, name) not in KNOWN and (module, name) not in self.allowed:
                    refusal = InvalidRequest(
                        "serde",
                        f"a stored value is of the type {module}.{name}, which is not loaded unless you allow it: give "
                        f"HoldfastSaver(..., allow=[{name}])",
                    )
                    self._refusals.set(refusal)
                    raise refusal
                if head:
                    self._heads.add(head)
            return hook(code, data)

        return checked


def _name_of(one: type | tuple[str, ...]) -> tuple[str, ...]:
    return (one.__module__, one.__name__) if isinstance(one, type) else tuple(one)


def _head(data: bytes) -> bytes:
    """Return the bytes up to the end of the two texts that a msgpack list begins with, b"" if their form is rare."""
    try:
        # Nearly every module and class has a name of at most 31 bytes, in a list of at most 15 parts.
        middle = 2 + (data[1] & 0x1F)
        if 0x90 <= data[0] <= 0x9F and 0xA0 <= data[1] <= 0xBF and 0xA0 <= data[middle] <= 0xBF:
            return data[: middle + 1 + (data[middle] & 0x1F)]
    except IndexError:
        pass
    return b""


def _first_two(data: bytes) -> tuple[str, str]:
    """Return the two texts that a msgpack list begins with, without decoding the rest."""
    try:
        texts: list[str] = []
        at = 1 if 0x90 <= data[0] <= 0x9F else 3
        while len(texts) < 2:
            mark = data[at]
            if 0xA0 <= mark <= 0xBF:
                size, begin = mark & 0x1F, at + 1
            else:
                size, begin = data[at + 1], at + 2
            texts.append(data[begin : begin + size].decode())
            at = begin + size
    except (IndexError, UnicodeDecodeError):
        return "?", "?"
    return texts[0], texts[1]
