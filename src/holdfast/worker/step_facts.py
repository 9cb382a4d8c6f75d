"""The facts of a step by which changed code is noticed."""

from __future__ import annotations

import os
import types
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec

from holdfast import typed_values

_INCOMPARABLE = (RecursionError, TypeError, ValueError, OverflowError, NotImplementedError)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_VALUES = (str, bytes, int, float, tuple)
"""Values whose methods may be steps, such as `"Hello {}".format`."""
MOST_DEPTH = 4
"""Levels of a value that are compared part by part if the whole has no form as a document."""
MOST_PARTS = 100
"""Parts that a value of such a level may have. The event loop waits while they are compared."""


def facts_of(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by which changed code is noticed: the name of the function, and a hash of its arguments.

    Those of a partial are arguments, and so are the fields of a frozen object that is called or whose method is.
    """
    while issubclass(type(function), partial):
        args, named = (*function.args, *args), {**function.keywords, **named}
        function = function.func
    owner = getattr(function, "__self__", function)
    is_compared = isinstance(owner, _VALUES) or typed_values.is_frozen(owner)
    return {"function": _name_of(function), "args": hash_of([args, named, owner] if is_compared else [args, named])}


def _name_of(function: Any) -> str:
    """Return the name of a function or a type. That of a method names the class of its object, not a base."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
        kind = owner if isinstance(owner, type) else type(owner)
        return f"{kind.__qualname__}.{getattr(function, '__name__', type(function.__func__).__qualname__)}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def hash_of(given: Any) -> str | None:
    """Return a hash of arguments, None if they are not comparable.

    A function counts by its name. An object that has no form as a document, such as a client, counts for nothing, so
    that the arguments beside it are compared.
    """
    import hashlib  # at its first use, because OpenSSL comes with it

    document = _document_of(given, 0)
    return None if document is None else hashlib.sha256(document).hexdigest()[:16]


def _document_of(given: Any, depth: int) -> bytes | None:
    """Return arguments as JSON, None if they have no such form. A set has another order in each process."""
    with suppress(*_INCOMPARABLE):
        return msgspec.json.encode(given, enc_hook=_comparable, order="deterministic")
    with suppress(*_INCOMPARABLE):  # has a key that is not text
        made = msgspec.to_builtins(given, enc_hook=_comparable, str_keys=True, order="deterministic")
        return msgspec.json.encode(made, enc_hook=_comparable, order="deterministic")
    whole = cast("object", given if isinstance(given, list | tuple | dict) else _comparable(given))
    if depth == MOST_DEPTH or not isinstance(whole, list | tuple | dict):
        return None
    is_dict = isinstance(whole, dict)
    parts = cast("dict[object, object]", whole).items() if is_dict else cast("list[object]", whole)
    if len(parts) > MOST_PARTS:
        return None
    documents = [_document_of(one, depth + 1) or b"null" for one in parts]
    return b"[" + b",".join(sorted(documents) if is_dict else documents) + b"]"


def _comparable(value: Any) -> Any:
    """Return a value that msgspec does not know in a form that can be compared, None if it has none."""
    if isinstance(value, _NAMED):
        return _name_of(value)
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    try:
        return typed_values.dump_model(value)
    except NotImplementedError:
        return None
    except (TypeError, ValueError):  # holds an object that has no form as a document, or one of a derived class
        return {name: getattr(value, name, None) for name in getattr(_kind_of(value), "model_fields", ())}


def _kind_of(value: object) -> type[object]:
    return type(value)
