"""The next step of an error, as data: the API and the command line each name settings and calls in their own terms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

AS_IN_THE_API: Final[Mapping[str, str]] = MappingProxyType({})


class NextStep(NamedTuple):
    """The next step after an error: a verb, the API's name of a setting or call, and the rest of the phrase."""

    verb: str
    name: str = ""
    rest: str = ""


RETRY: Final = NextStep("retry")


def sentence(problem: str, *steps: NextStep, names: Mapping[str, str] = AS_IN_THE_API) -> str:
    """Return the problem and the steps. `names` replaces the API's names; a step whose name becomes "" is left out."""
    named = [(one.verb, names.get(one.name, one.name), one.rest) for one in steps if names.get(one.name) != ""]
    ways = ", or ".join(" ".join(filter(None, words)) for words in named)
    return f"{problem}: {ways}" if ways else problem
