"""Typed values as documents: structs, dataclasses and pydantic models go in, and declared types come out.

A type always comes from the code that runs. Nothing is imported because the store names it, and pydantic is not needed:
a model is recognised by its methods.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import sys
import types
import typing
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest

MOST_WRAPPERS = 100
"""Decorators of one function that are looked through."""
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
_CONTAINERS: dict[Any, type[Any]] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
"""The documents that are of an abstract type of containers."""
_SIMPLE = (str, int, float, bool, types.NoneType)


def plain(value: Any) -> Any:
    """Return a document with structs, dataclasses and models in it as documents. Leaves anything else as it is."""
    kind = _kind_of(value)
    if kind is dict:
        return {key: plain(item) for key, item in value.items()}
    if kind is list:
        return [plain(item) for item in value]
    return encoded(value) if _is_object(kind) else value


class LostFields(TypeError):
    """An object would come back without some of its fields, or as another one."""


def as_documents(value: Any, field: str = "args") -> Any:
    """Return what `plain` makes of a value, or the value if that cannot be made: a store refuses it with the reason.

    Raises `InvalidRequest` if a model would lose fields.
    """
    try:
        return plain(value)
    except LostFields as error:
        raise InvalidRequest(field, str(error)) from None
    except (RecursionError, TypeError, ValueError, NotImplementedError):
        return value


def documents_of(value: Any, field: str = "args") -> Any:
    """Return what `as_documents` makes of a value that is not a document, None if that is nothing else."""
    documents = as_documents(value, field)
    return None if documents is value or documents == value else documents


def encoded(value: Any) -> Any:
    """Return a value as a document. Raises TypeError for what has no such form."""
    return _without_tuples(msgspec.to_builtins(value, enc_hook=dump_model, str_keys=True))


def dump_model(value: Any) -> Any:
    """Return a pydantic model as a document."""
    if _is_model(_kind_of(value)):
        try:
            # In the form that the model reads: by the names it is given by, and without computed fields.
            document = value.model_dump(mode="json", by_alias=True, round_trip=True)
        except ValueError as error:  # also those of pydantic are such
            raise TypeError(f"a {_kind_of(value).__name__} has no form as a document: {error}") from error
        # Pydantic dumps a field as its declared type, and leaves out what a derived model adds to it. A model that does
        # not read its own dump is refused where it is read.
        with suppress(msgspec.ValidationError):
            require_whole(value, _load_model(type(value), document))
        return document
    raise NotImplementedError(f"a {type(value).__name__} has no form as a document")


def decoded(value: Any, declared: Any) -> Any:
    """Return a document as a value of a type. Raises `msgspec.ValidationError` if it does not fit."""
    return msgspec.convert(value, readable(declared), dec_hook=_load_model, str_keys=True)


def _load_model(declared: Any, value: Any) -> Any:
    if not isinstance(declared, type) or not (_is_model_union(declared) or _is_model(declared)):
        raise msgspec.ValidationError(f"{declared} is not a type of documents")
    kind: Any = declared
    read = kind.adapter.validate_json if _is_model_union(declared) else kind.model_validate_json
    try:
        return read(msgspec.json.encode(value))
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from error


class _TakesAll(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True  # msgspec checks what was read, which pydantic has done


class _ModelUnion(metaclass=_TakesAll):
    """Stands for a union of pydantic models and other types, which msgspec does not read."""

    adapter: Any


def _is_model_union(kind: type[Any]) -> bool:
    return issubclass(kind, _ModelUnion)


def readable(declared: Any) -> Any:
    """Return a type that msgspec reads: the declared one, with a special class in place of each union with models."""
    try:
        return _readable(declared)
    except TypeError:  # not hashable
        return declared


@functools.lru_cache(maxsize=1024)
def _readable(declared: Any) -> Any:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (None, typing.Literal):
        return declared
    if origin is typing.Annotated:
        first, *notes = arguments
        inner = readable(first)
        return declared if inner is first else typing.Annotated[(inner, *notes)]
    if origin not in (typing.Union, types.UnionType):
        inside = tuple(map(readable, arguments))
        return declared if inside == arguments else origin[inside]
    members = tuple(one for one in arguments if one is not types.NoneType)
    if len(members) < 2 or not any(isinstance(one, type) and _is_model(one) for one in members):
        return declared
    pydantic: Any = sys.modules.get("pydantic")
    try:
        adapter = pydantic.TypeAdapter(typing.Union[members])  # noqa: UP007 - of a tuple
    except Exception:  # pydantic does not know another member, or the model is of another library
        return declared
    union = _TakesAll(str(declared), (_ModelUnion,), {"adapter": adapter})
    return union if len(members) == len(arguments) else union | None


def _without_tuples(value: Any) -> Any:
    kind = _kind_of(value)
    if kind is dict:
        return {key: _without_tuples(item) for key, item in value.items()}
    return [_without_tuples(item) for item in value] if kind in (list, tuple) else value


# Declared types.


def is_typed(declared: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Return whether values of a type are not documents already, so that they are encoded and decoded."""
    if isinstance(declared, msgspec.Meta):
        return True  # a bound of `Annotated`
    if type(declared).__name__ == "TypeAliasType":  # of Python 3.12 and newer
        return declared not in inside and is_typed(declared.__value__, (*inside, declared))
    if (plainly := _without_name(declared)) is not declared:
        return is_typed(plainly, inside)
    if _is_keyed(declared):
        return declared not in inside and any(is_typed(one, (*inside, declared)) for one in _hints(declared).values())
    arguments = typing.get_args(declared)
    if typing.get_origin(declared) is typing.Literal:
        return False
    if arguments:
        origin = typing.get_origin(declared)
        if origin is dict and arguments[0] not in (str, Any):
            return True  # the keys of a document are texts
        return (isinstance(origin, type) and is_typed(origin)) or any(is_typed(one, inside) for one in arguments)
    return isinstance(declared, type) and (_is_object(declared) or issubclass(declared, _VALUES))


def is_readable(declared: Any) -> bool:
    """Return whether a document can be read as a value of a type. The types inside of models are not looked at."""
    try:
        known = msgspec.inspect.type_info(readable(declared))
    except TypeError:
        return False
    return not isinstance(known, msgspec.inspect.CustomType) or _is_model_union(known.cls) or _is_model(known.cls)


def is_object(declared: Any) -> bool:
    """Return whether values of a type are structs, dataclasses or models. One of a union is enough: `Plan | None`."""
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return any(is_object(one) for one in typing.get_args(declared))
    return isinstance(declared, type) and _is_object(declared)


def has_fields(declared: Any, names: Collection[str]) -> bool:
    """Return whether values of a type are objects with all these fields. One of a union is enough."""
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return any(has_fields(one, names) for one in typing.get_args(declared))
    return is_object(declared) and set(names) <= set(_fields_of(declared))


def takes_none(declared: Any) -> bool:
    """Return whether None is a value of a union type."""
    return types.NoneType in typing.get_args(declared)


def _kind_of(value: Any) -> type[Any]:
    kind: type[Any] = value.__class__
    return kind


def _is_object(kind: type[Any]) -> bool:
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or _is_model(kind)


def _is_model(kind: type[Any]) -> bool:
    return hasattr(kind, "model_dump") and hasattr(kind, "model_validate_json")


def is_frozen(value: Any) -> bool:
    """Return whether a value is a struct, a dataclass or a model whose fields cannot be set."""
    kind = _kind_of(value)
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    if dataclasses.is_dataclass(kind):
        return bool(getattr(kind, "__dataclass_params__").frozen)  # noqa: B009 - type checkers do not know it
    return _is_model(kind) and bool(getattr(kind, "model_config", {}).get("frozen"))


def result_type(function: Any) -> Any:
    """Return the declared type of a function's results, None if it declares none."""
    called = _unwrapped(function)
    if isinstance(called, type):
        return called if is_typed(called) else None
    declared = _annotation(called, "return")
    return types.NoneType if declared is None and "return" in getattr(called, "__annotations__", {}) else declared


def result_document(value: Any, declared: Any) -> Any:
    """Return a result as a document. Raises TypeError or `msgspec.MsgspecError` if it is not of the declared type."""
    if declared is None:
        return value
    if is_typed(declared):
        document = encoded(value)
        require_whole(value, decoded(document, declared))
        return document
    problem = misfit(value, declared)
    if problem is not None:
        raise TypeError(problem)
    return value


def require_whole(value: Any, read: Any, place: str = "") -> None:
    """Raise TypeError for an object of a derived class that would come back without its further fields."""
    kind, known = _kind_of(value), _kind_of(read)
    if kind in _SIMPLE:
        return
    if _is_model(kind) and _is_model(known) and not issubclass(kind, known) and not issubclass(known, kind):
        problem = f"would come back as a {known.__name__}: give each a field that tells them apart"
        raise LostFields(f"a {kind.__name__}{_at(place)} {problem}")
    if hasattr(value, "get_secret_value") and value != read:
        problem = "is stored as asterisks, and its value would be lost: keep secrets out of arguments and results"
        raise LostFields(f"a {kind.__name__}{_at(place)} {problem}")
    if _is_object(kind) and issubclass(kind, known) and _is_object(known):
        if kind is not known and encoded(read) != encoded(value):
            raise LostFields(_lost(kind, place))
        for name in _fields_of(known):
            require_whole(getattr(value, name, None), getattr(read, name, None), f"{place}.{name}")
    elif issubclass(kind, dict) and issubclass(known, dict):
        _require_whole_dict(value, read, place)
    elif isinstance(value, list | tuple) and isinstance(read, list | tuple):
        pairs = zip(cast("list[Any]", value), cast("list[Any]", read), strict=False)
        for index, (one, other) in enumerate(pairs):
            require_whole(one, other, f"{place}[{index}]")
    elif isinstance(value, set | frozenset) and isinstance(read, set | frozenset):
        kinds = {_kind_of(one) for one in cast("set[Any]", read)}
        for one in {_kind_of(one) for one in cast("set[Any]", value)} - kinds:
            if _is_object(one):
                raise LostFields(_lost(one, place))


def _require_whole_dict(value: dict[Any, Any], read: dict[Any, Any], place: str) -> None:
    """Raise TypeError for a dictionary that would come back without some of its keys, or of its items' fields."""
    if len(read) < len(value):
        further = ", ".join(sorted(map(str, value.keys() - read.keys())))
        raise LostFields(f"a dict{_at(place)} has keys that its type does not declare, which would be lost: {further}")
    for key, item in value.items():
        if key in read:
            require_whole(item, read[key], f"{place}[{key!r}]")


def _at(place: str) -> str:
    return f" at {place.removeprefix('.')}" if place else ""


def _lost(kind: type[Any], place: str) -> str:
    return f"a {kind.__name__}{_at(place)} has further fields, which would be lost: declare {kind.__name__}"


def _fields_of(kind: Any) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return list(kind.model_fields)


def misfit(value: Any, declared: Any, place: str = "") -> str | None:
    """Say in which way a document is not of a type of documents, None if it is. An unknown type takes anything."""
    while (plainly := _without_name(getattr(declared, "__value__", declared))) is not declared:
        declared = plainly  # below an alias or another name
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    origin = _CONTAINERS.get(origin, origin)
    if _is_keyed(declared):
        return _misfit_of_keys(value, declared, place)
    if origin in (typing.Union, types.UnionType):
        problems = [misfit(value, one, place) for one in arguments]
        fits = None in problems
        inside = next((one for one in problems if one is not None and f" at {place}[" in one), None)
        if not fits and inside is not None:
            return inside
    elif origin is typing.Literal:
        fits = any(type(value) is type(one) and value == one for one in arguments)
    elif (origin or declared) in (list, dict):
        fits = isinstance(value, cast("type", origin or declared))
        if fits and arguments:
            items: Any = cast("Any", value).items() if isinstance(value, dict) else enumerate(value)
            found = (misfit(item, arguments[-1], f"{place}[{key!r}]") for key, item in items)
            return next((one for one in found if one is not None), None)
    elif declared is float:
        fits = isinstance(value, int | float)
    else:
        fits = declared not in (int, str, bool, types.NoneType, None) or isinstance(value, declared or types.NoneType)
    return (
        None if fits else f"expected {name_of(declared)}, got {type(value).__name__}{f' at {place}' if place else ''}"
    )


def _misfit_of_keys(value: Any, declared: Any, place: str) -> str | None:
    """Say in which way a document is not a `TypedDict` of this type, None if it is."""
    if not isinstance(value, dict):
        return f"expected {name_of(declared)}, got {type(value).__name__}{f' at {place}' if place else ''}"
    items, hints = cast("dict[str, Any]", value), _hints(declared)
    for key, hint in hints.items():
        if key not in items and _is_required(declared, key, hint):
            return f"expected {name_of(declared)}, got no {key!r}{f' at {place}' if place else ''}"
    found = (misfit(item, hints[key], f"{place}[{key!r}]") for key, item in items.items() if key in hints)
    return next((one for one in found if one is not None), None)


def _is_required(declared: Any, key: str, hint: Any) -> bool:
    """Return whether a `TypedDict` needs a key. The hint decides: the class does not know what a text says."""
    origin = typing.get_origin(hint)
    return origin is typing.Required or (key in declared.__required_keys__ and origin is not typing.NotRequired)


def _hints(declared: Any) -> dict[str, Any]:
    """Return the types of the keys of a `TypedDict`, none if a name in them is not known when it runs."""
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except NameError:
        return {}


def _is_keyed(declared: Any) -> bool:
    """Return whether a type is a `TypedDict`, also one of `typing_extensions`."""
    return isinstance(declared, type) and hasattr(declared, "__required_keys__")


def _without_name(declared: Any) -> Any:
    """Return the type below a `NewType`, a `Required` or an `Annotated` without bounds, or the type itself."""
    if typing.get_origin(declared) in (typing.Required, typing.NotRequired):
        return typing.get_args(declared)[0]
    if typing.get_origin(declared) is typing.Annotated:
        first, *notes = typing.get_args(declared)
        return declared if any(isinstance(one, msgspec.Meta) for one in notes) else first
    return getattr(declared, "__supertype__", declared)


def name_of(declared: Any) -> str:
    """Return the name of a type for people."""
    plainly = isinstance(declared, type) and not typing.get_args(declared)
    return declared.__name__ if plainly else str(declared)


def is_declarable(value: Any) -> bool:
    """Return whether a value that is not a document becomes one if its type is declared."""
    try:
        document = encoded(value)
        return document is not value and bool(document != value)
    except (RecursionError, TypeError, ValueError, NotImplementedError):
        return False


def annotation(function: Any, name: str) -> Any:
    """Return the type that a function declares for a parameter if values of it are typed, else None.

    Raises `InvalidRequest` if the type exists for type checkers only.
    """
    raw = _annotation(_unwrapped(function), name)
    return raw if is_typed(raw) else None


def argument(function: Any, name: str, value: Any) -> Any:
    """Return a document as a value of the type that a function declares for a parameter, as it is without one.

    Raises TypeError or `msgspec.ValidationError` if it does not fit.
    """
    declared = _annotation(_unwrapped(function), name)
    if is_typed(declared):
        return decoded(value, declared)
    problem = None if declared is None else misfit(value, declared)
    if problem is not None:
        raise TypeError(problem)
    return value


def _annotation(function: Any, name: str) -> Any:
    try:
        raw = getattr(function, "__annotations__", {}).get(name)
    except NameError as error:
        raise _unresolved(function, name, error) from None
    if isinstance(raw, str):
        try:
            raw = _resolved(function, name, raw)
        except NameError as error:
            raise _unresolved(function, name, error) from None
    return raw


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
    """Return the function that has the annotations: below partials and decorators, whose names are of other modules."""
    for _ in range(MOST_WRAPPERS):
        is_partial = isinstance(function, functools.partial)
        inner: Any = getattr(function, "func" if is_partial else "__wrapped__", None)
        if inner is None:
            break
        function = inner
    is_plain = isinstance(function, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType)
    called: Callable[..., Any] = function if is_plain else getattr(cast("Any", type(function)), "__call__", function)  # noqa: B004
    return called


def _unresolved(function: Any, name: str, error: NameError) -> InvalidRequest:
    return InvalidRequest(
        getattr(function, "__qualname__", repr(function)),
        f"declares a type for {name!r} that is not there when it runs ({error}): import it not only for type checkers",
    )
