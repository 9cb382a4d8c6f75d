"""Records an error as a document and recreates it: of the same class, with the same text and attributes.

An error that no document can hold whole has no record, so that a handler never meets it in two forms. Classes are
looked up among the loaded modules, and never imported.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from holdfast.next_step import NextStep

MOST_DEPTH = 16
"""Levels of an error's values that are recorded."""
WHOLE_BITS = 63
LARGEST_ESCAPE = 8
"""Bytes of a document that one byte of a text may take: a control character takes six. The rest is for the class."""
MAKERS = ("from_exception_data",)
"""Class methods that may make an error again. Those of Pydantic cannot be made otherwise."""


class _Unrecordable(Exception):
    """A value that no document holds whole."""


class UnknownErrorClass(Exception):
    """The class of a recorded error is not loaded, or no longer makes an equal error."""


def recorded_error(error: Exception, most_bytes: int, most_depth: int) -> dict[str, Any] | None:
    """Return an error as a document within these bounds, None if an equal one cannot be made from it.

    One of nothing but a text that is too long is recorded with a part of the text.
    """
    try:
        document = _packed_error(error, 0)
        if _depth(document) > most_depth:
            return None
        if len(msgspec.json.encode(document)) <= most_bytes:
            return document
        return _packed_error(_cut(error, most_bytes // LARGEST_ESCAPE), 0)
    except Exception:  # code of its class may raise anything
        return None


def error_of(document: Mapping[str, Any]) -> Exception:
    """Return the recorded error. Raises `UnknownErrorClass` if its class is not there, or is another one now."""
    module, name = document["class"]
    try:
        return _made(document)
    except Exception as error:  # code of its class may raise anything
        raise UnknownErrorClass(f"{module}.{name}") from error


def class_name(error: BaseException) -> str:
    """Return the full name of the class of an error."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _cut(error: Exception, most_bytes: int) -> Exception:
    """Return an error that holds nothing but a text with the beginning of that."""
    if error.__dict__ or len(error.args) != 1 or type(error.args[0]) is not str:
        raise _Unrecordable
    text = error.args[0].encode("utf-8", "replace")[:most_bytes].decode(errors="ignore")
    return type(error)(text)


# Errors.


def _packed_error(error: Exception, depth: int) -> dict[str, Any]:
    kind = type(error)
    parts: Any = error.__reduce__()
    make, arguments = parts[0], parts[1]
    state: dict[str, Any] | None = parts[2] if len(parts) > 2 else None
    if getattr(make, "__self__", None) is kind and make.__name__ in MAKERS:
        way = str(make.__name__)
        return _checked(error, _document(kind, way, arguments, {"args": error.args}, depth))
    if isinstance(error, AttributeError | NameError):
        # Python does not copy their `name`, and in each `AttributeError` it puts the object that lacks the attribute.
        state = {**(state or {}), "name": error.name}
        state.pop("obj", None)
    if make is kind:
        with suppress(Exception):  # its own code
            return _checked(error, _document(kind, "init", arguments, state, depth))
    return _checked(error, _document(kind, "new", error.args, error.__dict__, depth))


def _document(kind: type, way: str, arguments: Any, state: Any, depth: int) -> dict[str, Any]:
    return {
        "class": [kind.__module__, kind.__qualname__],
        "way": way,
        "args": _packed(arguments, depth + 1),
        "state": _packed(state or None, depth + 1),  # reading `__dict__` may create an empty one
    }


def _checked(error: Exception, document: dict[str, Any]) -> dict[str, Any]:
    if not _is_same(error, _made(document)):
        raise _Unrecordable
    return document


def _made(document: Mapping[str, Any]) -> Exception:
    module, name = document["class"]
    kind: Any = sys.modules[module]
    for part in name.split("."):
        kind = getattr(kind, part)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        raise TypeError(name)
    arguments, state = _unpacked(document["args"]), _unpacked(document["state"])
    way: str = document["way"]
    made: Exception
    if way == "new":  # its `__init__` takes other arguments than those that it keeps
        made = kind.__new__(kind, *arguments)
    else:
        make: Callable[..., Exception] = getattr(kind, way) if way in MAKERS else kind
        made = make(*arguments)
    if state is not None:
        made.__setstate__(state)
    return made


def _is_same(one: Exception, other: Exception) -> bool:
    """Return whether two errors are alike to a handler: class, text, arguments and public attributes.

    Leaves out the object that has no such attribute: Python puts it into each `AttributeError`.
    """
    if type(one) is not type(other) or str(one) != str(other) or repr(one) != repr(other):
        return False
    names = {name for name in (*dir(one), *dir(other)) if not name.startswith("_")} | {"__notes__"}
    if isinstance(one, AttributeError):
        names.discard("obj")
    return all(_attribute(one, name) == _attribute(other, name) for name in names)


def _attribute(error: Exception, name: str) -> Any:
    """Return an attribute in a form that can be compared."""
    try:
        value = getattr(error, name)
    except Exception as problem:  # a property that has no value
        return type(problem)
    if callable(value):
        return callable
    try:
        return _packed(value, 0)
    except _Unrecordable:
        return value


# Values.


def _packed(value: Any, depth: int) -> Any:
    """Return a value as a document. Other than in plain JSON, texts and lists come back as what they were."""
    if depth > MOST_DEPTH:
        raise _Unrecordable
    kind = _class_of(value)
    if value is None or kind is bool or (kind is int and value.bit_length() <= WHOLE_BITS):
        return value
    if kind is float and value - value == 0:
        return value
    if kind is str:
        encoded = value.encode("utf-8", "surrogatepass")
        return value if _is_text(encoded) else {"surrogates": base64.b64encode(encoded).decode()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is tuple or kind is list:
        return {kind.__name__: [_packed(one, depth + 1) for one in value]}
    if kind is dict:
        pairs = [[_packed(key, depth + 1), _packed(one, depth + 1)] for key, one in value.items()]
        return {"dict": pairs}
    if kind is NextStep:
        return {"next_step": list(value)}
    if isinstance(value, Exception):
        return {"error": _packed_error(value, depth + 1)}
    raise _Unrecordable


def _unpacked(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    [(kind, held)] = cast("dict[str, Any]", document).items()
    if kind == "surrogates":
        return base64.b64decode(held).decode("utf-8", "surrogatepass")
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "dict":
        return {_unpacked(key): _unpacked(one) for key, one in held}
    if kind == "next_step":
        return NextStep(*held)
    if kind == "error":
        return _made(held)
    values = [_unpacked(one) for one in held]
    return tuple(values) if kind == "tuple" else values


def _class_of(value: object) -> type[object]:
    return type(value)


def _depth(document: object) -> int:
    if isinstance(document, dict):
        return 1 + max(map(_depth, cast("dict[str, object]", document).values()), default=0)
    inner = cast("list[object]", document) if isinstance(document, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _is_text(encoded: bytes) -> bool:
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return False
    return True
