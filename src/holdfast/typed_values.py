"""Typed values as documents: structs, dataclasses and pydantic models go in, and declared types come out.

A type always comes from the code that runs. Nothing is imported because the store names it, and pydantic is not needed:
a model is recognised by its methods.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest

_VALUES = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
    bytes,
    bytearray,
    tuple,
    set,
    frozenset,
    enum.Enum,
)


def plain(value: Any) -> Any:
    """Return a document with structs, dataclasses and models in it as documents. Leaves anything else as it is."""
    kind = _kind_of(value)
    if kind is dict:
        return {key: plain(item) for key, item in value.items()}
    if kind is list:
        return [plain(item) for item in value]
    return encoded(value) if _is_object(kind) else value


def documents_of(value: Any) -> Any:
    """Return what `plain` makes of a value that is not a document; None if that is nothing else, or cannot be made."""
    try:
        documents = plain(value)
        return None if documents == value else documents
    except (RecursionError, TypeError, ValueError, NotImplementedError):
        return None


def encoded(value: Any) -> Any:
    """Return a value as a document. Raises TypeError for what has no such form."""
    return _without_tuples(msgspec.to_builtins(value, enc_hook=dump_model, str_keys=True))


def dump_model(value: Any) -> Any:
    """Return a pydantic model as a document."""
    if _is_model(_kind_of(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__} has no form as a document")


def decoded(value: Any, declared: Any) -> Any:
    """Return a document as a value of a type. Raises `msgspec.ValidationError` if it is none."""
    return msgspec.convert(value, declared, dec_hook=_load_model, str_keys=True)


def _load_model(declared: Any, value: Any) -> Any:
    if isinstance(declared, type) and _is_model(declared):
        try:
            return declared.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error
    raise msgspec.ValidationError(f"{declared} is not a type of documents")


def _without_tuples(value: Any) -> Any:
    kind = _kind_of(value)
    if kind is dict:
        return {key: _without_tuples(item) for key, item in value.items()}
    return [_without_tuples(item) for item in value] if kind in (list, tuple) else value


# Declared types.


def is_typed(declared: Any) -> bool:
    """Return whether values of a type are not documents already, so that they are encoded and decoded."""
    if type(declared).__name__ == "TypeAliasType":  # of Python 3.12 and newer
        return is_typed(declared.__value__)
    arguments = typing.get_args(declared)
    if typing.get_origin(declared) is typing.Literal:
        return False
    if arguments:
        origin = typing.get_origin(declared)
        return (isinstance(origin, type) and is_typed(origin)) or any(is_typed(one) for one in arguments)
    return isinstance(declared, type) and (_is_object(declared) or issubclass(declared, _VALUES))


def is_object(declared: Any) -> bool:
    """Return whether a type is a struct, a dataclass or a model."""
    return isinstance(declared, type) and _is_object(declared)


def _kind_of(value: Any) -> type[Any]:
    kind: type[Any] = value.__class__
    return kind


def _is_object(kind: type[Any]) -> bool:
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or _is_model(kind)


def _is_model(kind: type[Any]) -> bool:
    return hasattr(kind, "model_dump") and hasattr(kind, "model_validate_json")


def result_type(function: Any) -> Any:
    """Return the declared type of a function's results if they are typed, None if they are documents."""
    called = _unwrapped(function)
    if isinstance(called, type):
        return called if is_typed(called) else None
    return annotation(called, "return")


def annotation(function: Any, name: str) -> Any:
    """Return the type that a function declares for a parameter or `return` if values of it are typed, else None.

    Raises `InvalidRequest` if the type exists for type checkers only.
    """
    try:
        raw = getattr(function, "__annotations__", {}).get(name)
    except NameError as error:
        raise _unresolved(function, name, error) from None
    if isinstance(raw, str):
        try:
            raw = _resolved(function, name, raw)
        except NameError as error:
            raise _unresolved(function, name, error) from None
    return raw if is_typed(raw) else None


@functools.lru_cache(maxsize=1024)
def _resolved(function: Any, name: str, raw: str) -> Any:
    inner = {} if getattr(function, "__closure__", None) is None else _closed_over(function)
    holder = types.SimpleNamespace(__annotations__={name: raw})
    return typing.get_type_hints(holder, getattr(function, "__globals__", {}), inner)[name]


def _closed_over(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _unwrapped(function: Any) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    is_plain = isinstance(function, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType)
    called: Callable[..., Any] = function if is_plain else getattr(cast("Any", type(function)), "__call__", function)  # noqa: B004
    return called


def _unresolved(function: Any, name: str, error: NameError) -> InvalidRequest:
    return InvalidRequest(
        getattr(function, "__qualname__", repr(function)),
        f"declares a type for {name!r} that is not there when it runs ({error}): import it not only for type checkers",
    )
