"""The facts of a step by which changed code is noticed."""

from __future__ import annotations

import os
import types
from functools import partial
from typing import Any, cast

import msgspec

from holdfast import typed_values

_INCOMPARABLE = (RecursionError, TypeError, ValueError, OverflowError, NotImplementedError)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def facts_of(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by which changed code is noticed: the name of the function, and a hash of its arguments.

    Those of a partial are arguments, and so are the fields of a frozen object that is called or whose method is.
    """
    while issubclass(type(function), partial):
        args, named = (*function.args, *args), {**function.keywords, **named}
        function = function.func
    owner = getattr(function, "__self__", function)
    given = hash_of([args, named, owner]) if typed_values.is_frozen(owner) else None
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"function": name, "args": hash_of([args, named]) if given is None else given}


def hash_of(given: Any) -> str | None:
    """Return a hash of arguments, None if they are not comparable.

    A function counts by its name. An object that has no form as a document, such as a client, counts for nothing, so
    that the arguments beside it are compared.
    """
    import hashlib  # at its first use, because OpenSSL comes with it

    try:
        document = _sorted(given)
    except TypeError:  # for a key that is not text
        try:
            document = _sorted(msgspec.to_builtins(given, enc_hook=_comparable, str_keys=True, order="deterministic"))
        except _INCOMPARABLE:
            return None
    except _INCOMPARABLE:
        return None
    return hashlib.sha256(document).hexdigest()[:16]


def _sorted(given: Any) -> bytes:
    """Return arguments as JSON. A set has another order in each process."""
    return msgspec.json.encode(given, enc_hook=_comparable, order="deterministic")


def _comparable(value: Any) -> Any:
    """Return a value that msgspec does not know in a form that can be compared, None if it has none."""
    if isinstance(value, _NAMED):
        return value.__qualname__
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    try:
        return typed_values.dump_model(value)
    except NotImplementedError:
        return None
