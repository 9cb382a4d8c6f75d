"""The serialiser of a saver by default: LangGraph's own, which loads only types that are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde import _msgpack as msgpack_types
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.adapters.langgraph import messages
from holdfast.adapters.langgraph.messages import Hook
from holdfast.errors import InvalidRequest

CONSTRUCTORS = range(6)
"""Extension codes of msgpack whose data begin with a module and a name."""
NUMPY = 6
"""The extension code of an array of numpy: its type, shape, order and bytes."""
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
        self._unpack_ext_hook: Hook = self._checking(self._unpack_ext_hook)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> StrictSerializer:
        """Return a serialiser that loads further types."""
        return StrictSerializer(allow=[*self.allowed, *extra_allowlist])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the format and the bytes of a value."""
        if obj is not None and not isinstance(obj, bytes | bytearray):
            data = messages.dumped(obj)
            if data is not None:
                return "msgpack", data
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value."""
        try:
            return super().loads_typed(data)
        except ValueError as error:
            # The decoder reports that the hook has raised, and drops the reason.
            refusal = self._refusals.get()
            if refusal is None:
                raise
            raise refusal from error
        finally:
            self._refusals.set(None)

    def _checking(self, hook: Hook) -> Hook:
        def checked(code: int, data: bytes) -> Any:
            if code == messages.MODEL:
                message = messages.loaded(data, messages.head_of(data), checked)
                if message is not None:
                    return message
            self._require_allowed(code, data)
            return hook(code, data)

        return checked

    def _require_allowed(self, code: int, data: bytes) -> None:
        """Refuse a value of an unknown type, or one that has such a value in it, at any depth."""
        waiting = [(code, data)]

        def wait(code: int, data: bytes) -> None:
            waiting.append((code, data))

        while waiting:
            code, data = waiting.pop()
            if code in CONSTRUCTORS:
                self._require_known(data)
            elif code == NUMPY and find_spec("numpy") is None:
                self._refuse("a stored value is an array of numpy, which is not installed: install numpy")
            ormsgpack.unpackb(data, ext_hook=wait, option=messages.LOADING)

    def _require_known(self, data: bytes) -> None:
        head = messages.head_of(data)
        if head in self._heads:
            return
        module, name = _first_two(data)
        if (module, name) not in KNOWN and (module, name) not in self.allowed:
            self._refuse(
                f"a stored value is of the type {module}.{name}, which is not loaded unless you allow it: give "
                f"HoldfastSaver(..., allow=[{name}])"
            )
        if head:
            self._heads.add(head)

    def _refuse(self, problem: str) -> None:
        refusal = InvalidRequest("serde", problem)
        self._refusals.set(refusal)
        raise refusal


def _name_of(one: type | tuple[str, ...]) -> tuple[str, ...]:
    return (one.__module__, one.__name__) if isinstance(one, type) else tuple(one)


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
