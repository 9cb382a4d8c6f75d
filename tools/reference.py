"""Writes the reference from the docstrings of the public names and the declarations of the commands, and no more.

Usage: python tools/reference.py          write docs/reference/*.md
       python tools/reference.py --check  change nothing, exit code 1 if a page is not current

Needs nothing but the standard library and an importable `holdfast`.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import holdfast
from holdfast import store as facets
from holdfast import worker
from holdfast.cli.commands import Argument, Command
from holdfast.cli.parser import COMMANDS, COMMON, EXIT_CODES
from holdfast.public_names import places, value_at

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
PLACES = places()
# Examples are laid out for their docstrings. A formatter that reads Markdown must not touch them here.
REWRITE = "<!-- Written by tools/reference.py from the docstrings: change those, then run it. -->\n<!-- fmt: off -->"


@dataclass(frozen=True)
class Topic:
    """One page: one or two facets, and the modules whose public names belong with them."""

    file: str
    title: str
    facets: tuple[tuple[str, type], ...]
    modules: tuple[str, ...]


TOPICS = (
    Topic(
        "opening.md",
        "Opening a store",
        (("store", holdfast.Store),),
        ("factory", "store", "blocking", "blocking_turn", "folder", "ports", "records.options", "records.limits"),
    ),
    Topic(
        "sessions.md",
        "Sessions and commits",
        (("store.sessions", facets.Sessions), ("session", facets.Session), ("turn", holdfast.Turn)),
        (
            "store.session",
            "store.turn",
            "records.sessions",
            "records.commits",
            "records.graph",
            "records.checkpoints",
            "records.streams",
        ),
    ),
    Topic("queue.md", "The work queue", (("store.queue", facets.Queue),), ("records.queue",)),
    Topic(
        "worker.md",
        "The worker",
        (("worker", holdfast.Worker), ("run", worker.Run), ("store.workers", facets.Workers)),
        (
            *("worker.worker", "worker.retries", "worker.jobs", "worker.run", "worker.blocking_run", "worker.tally"),
            *("worker.children", "worker.run_errors", "worker.journal", "worker.facts", "worker.replaying"),
            "records.workers",
        ),
    ),
    Topic("leases.md", "Leases", (("store.leases", facets.Leases),), ("records.leases", "owners")),
    Topic(
        "processes.md",
        "Processes and events",
        (
            ("store.processes", facets.Processes),
            ("handle", holdfast.processes.RunHandle),
            ("store.events", facets.Events),
        ),
        ("records.processes", "rules.runs", "records.events", "store.run_handle", "blocking_run_handle"),
    ),
    Topic("grants.md", "Grants", (("store.grants", facets.Grants),), ("records.grants",)),
    Topic("triggers.md", "Triggers", (("store.triggers", facets.Triggers),), ("records.triggers", "rules.triggers")),
    Topic("schedules.md", "Schedules", (("store.schedules", facets.Schedules),), ("records.schedules",)),
    Topic(
        "attachments.md",
        "Attachments",
        (("session.attachments", facets.SessionAttachments), ("store.attachments", facets.Attachments)),
        ("records.attachments",),
    ),
    Topic("artifacts.md", "Artifacts", (("store.artifacts", facets.Artifacts),), ("records.artifacts",)),
    Topic(
        "maintenance.md",
        "Maintenance",
        (("store.maintenance", facets.Maintenance),),
        ("records.maintenance", "records.diagnosis", "records.explanations"),
    ),
    Topic(
        "observing.md",
        "Observing a store",
        (),
        ("ports.observer", "observers.logs", "observers.telemetry", "records.observations"),
    ),
    Topic("values.md", "Values that everything shares", (), ("records.common", "records.restoring", "paging")),
    Topic("errors.md", "Errors", (), ("errors", "next_step")),
)

INDEX_HEAD = """\
# Reference

Every public name as it is written after `holdfast.`, with what a caller may rely on. The top level has the names that
most programs need; the others are in the module of their facet, as `events.EventType` is in that of `store.events`.
Words that have a meaning of their own here are in the [glossary](../glossary.md).

On the async store, put `await` in front of a method. The blocking store has the same methods without it, and the
examples are written for that one: `store` is a fresh, empty store from `holdfast.open_blocking`.
`events.follow` is an async iterator, or a plain one. `sessions.handle`, `sessions.unbound`,
`processes.handle` and `triggers.source_key` read nothing and are never awaited.

Times are whole milliseconds since the epoch. Durations are whole milliseconds too. A listing gives a `Page` of 50 items
by default, and its `next` goes into `after=` for the next page. A page also ends with the item with which its documents
reach 16 MiB: only `next` says whether there is more. [`holdfast.every`](values.md#every) iterates over a whole listing:
`for session in holdfast.every(store.sessions.list, owner="ada")`, and with `async for` on an async store.
"""

COMMAND_LINE = "command-line.md"
COMMAND_LINE_HEAD = """\
# The command line

`holdfast`, or `python -m holdfast`, inspects and maintains a store. Name the store with `--url` or the environment
variable `HOLDFAST_URL`. Only `init` creates a store, and only `migrate` upgrades one.

Results go to standard output, everything else to standard error. An error is one line that ends with the next step;
`--debug` shows its traceback. Colours and progress bars need a terminal, and `NO_COLOR` turns colours off. Control
characters in stored text are escaped.

A command that deletes asks first. Without a terminal, it needs `--yes`.

With `--json` a command prints one JSON value with the keys listed here. Later versions may add keys. A record has the
fields of its class, bytes are base64, and times are milliseconds since the epoch. An error is one JSON object on
standard error: `error` (its class), `message`, `exit_code`, and for errors of the store `retryable` and `outcome`.
A duration is a number with a unit: `500ms`, `30s`, `15m`, `12h`, `7d`.

[How to look into a store](../how-to/look-into-a-store.md) shows examples. [Moving
sessions](../explanation/moving-sessions.md) describes `export`, `import`, `copy` and the file format.
"""


# ---------------------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """Return every page by file name, as it should be in the folder."""
    written = {topic.file: page(topic) for topic in TOPICS}
    return {"index.md": index(), **written, COMMAND_LINE: command_line()}


def page(topic: Topic) -> str:
    parts = [f"# {topic.title}", REWRITE]
    if "errors" in topic.modules:
        parts.append(tree_of_errors())
    for name, facet in topic.facets:
        parts.extend(facet_section(name, facet))
    shown = [facet for _, facet in topic.facets]
    rest = [place for place in PLACES if topic_of(place) is topic and value_at(place) not in shown]
    rest.sort(key=bare)
    if rest and topic.facets:
        parts.append("## Names")
    for place in rest:
        parts.extend(name_section(place, "###" if topic.facets else "##"))
    aliases = [line for module in topic.modules for line in aliases_of(f"holdfast.{module}")]
    if aliases:
        parts.extend(["## Words used in types", fenced("text", "\n".join(aliases))])
    return "\n\n".join(parts) + "\n"


def index() -> str:
    parts = [INDEX_HEAD.rstrip(), REWRITE, "## Pages"]
    lines = [f"- [{topic.title}]({topic.file}){_facet_names(topic)}" for topic in TOPICS]
    lines.append(f"- [The command line]({COMMAND_LINE}): `holdfast`")
    parts.append("\n".join(lines))
    parts.append("## Names")
    rows = ["| name | |", "|---|---|"]
    for place in sorted(PLACES, key=str.lower):
        link = f"[`{place}`]({topic_of(place).file}#{anchor(place)})"
        rows.append(f"| {link} | {summary(documentation(place))} |")
    parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _facet_names(topic: Topic) -> str:
    return ": " + ", ".join(f"`{name}`" for name, _ in topic.facets) if topic.facets else ""


def bare(place: str) -> str:
    """Return the name without its public module."""
    return place.rpartition(".")[2]


def topic_of(place: str) -> Topic:
    """Return the page of a public name, by the module that defines it."""
    module = module_of(place).removeprefix("holdfast.")
    for topic in TOPICS:
        if module in topic.modules:
            return topic
    raise LookupError(f"no page for {place}: add holdfast.{module} to a topic in {Path(__file__).name}")


def module_of(place: str) -> str:
    module = str(getattr(value_at(place), "__module__", ""))
    if module.startswith("holdfast"):
        return module
    # A type alias does not know its module: search the text below it.
    records = [known for known in sys.modules if known.startswith("holdfast.records.")]
    return next(known for known in sorted(records) if bare(place) in documented_constants(known))


def anchor(place: str) -> str:
    """Return the anchor of a name. The classes that are facets are under the facet's name."""
    return bare(place).lower()


# ---------------------------------------------------------------------------- sections


OF_THE_WORKER = {"fall_asleep", "until", "watch_tasks", "while_wanted", "all_children", "result_of"}
"""Methods of a run that the worker calls, and no handler."""


def facet_section(name: str, facet: type) -> Iterator[str]:
    yield f"## `{name}`"
    yield from prose(inspect.getdoc(facet) or "")
    members_of = {name: value for base in facet.__mro__[-2::-1] for name, value in vars(base).items()}
    for method, value in members_of.items():
        if method.startswith("_") or method in OF_THE_WORKER:
            continue
        if isinstance(value, property):
            yield f"### `{name}.{method}`"
            yield from prose(inspect.getdoc(value) or "")
        elif inspect.isfunction(value):
            yield f"### `{name}.{method}`"
            yield fenced("text", signature(f"{name}.{method}", value))
            yield from prose(inspect.getdoc(value) or "")


def name_section(place: str, heading: str) -> Iterator[str]:
    value = value_at(place)
    yield f"{heading} {bare(place)}"
    if "." in place:
        yield f"`holdfast.{place}`"
    yield from prose(documentation(place))
    if inspect.isfunction(value):
        yield fenced("text", signature(f"holdfast.{place}", value))
    elif inspect.isclass(value) and issubclass(value, holdfast.HoldfastError):
        yield from error_facts(value)
    elif inspect.isclass(value) and struct_fields(value):
        yield fields(value)
        yield from members(value)


def documentation(place: str) -> str:
    below_it = documented_constants(module_of(place)).get(bare(place))
    return below_it or inspect.getdoc(value_at(place)) or ""


def error_facts(error: type[holdfast.HoldfastError]) -> Iterator[str]:
    parent = error.__bases__[0].__name__
    facts = [] if parent == "Exception" else [f"A kind of `{parent}`."]
    carried = _parameters(vars(error)["__init__"]) if "__init__" in vars(error) else []
    if carried:
        facts.append("Carries " + ", ".join(f"`{name}`" for name in carried) + ".")
    facts.append("Retrying the same call may help." if error.retryable else "Retrying the same call does not help.")
    yield " ".join(facts)


def _parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in {"self", "message"}]


def struct_fields(record: type) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(record, "__struct_fields__", ())
    return names


def fields(record: type) -> str:
    """Return the fields of a record as a table: name, type as written, default."""
    rows = ["| field | type | default |", "|---|---|---|"]
    declared: dict[str, Any] = {}
    for base in reversed(record.__mro__):
        declared.update(inspect.get_annotations(base))
    parameters = inspect.signature(record).parameters
    for name in struct_fields(record):
        given = parameters[name].default
        default = "" if given is inspect.Parameter.empty else f"`{shown_value(given)}`"
        kind = str(declared[name]).replace("|", "\\|")
        rows.append(f"| `{name}` | `{kind}` | {default} |")
    return "\n".join(rows)


def members(record: type) -> Iterator[str]:
    """Yield a record's properties and methods."""
    lines: list[str] = []
    for name, value in vars(record).items():
        if name.startswith("_"):
            continue
        function: Any = getattr(value, "__func__", value)  # a class method wraps a function
        if isinstance(value, property):
            lines.append(f"- `{name}`: {summary(inspect.getdoc(value) or '')}")
        elif inspect.isfunction(function):
            lines.append(f"- `{signature(name, function, oneline=True)}`: {summary(inspect.getdoc(function) or '')}")
    if lines:
        yield "\n".join(lines)


def tree_of_errors() -> str:
    """Return the docstring of the module, with its tree as a block."""
    text = inspect.getdoc(inspect.getmodule(holdfast.HoldfastError)) or ""
    head, tree, tail = text.split("\n\n", 2)
    return f"{head}\n\n{fenced('text', inspect.cleandoc(tree))}\n\n{tail}"


# ---------------------------------------------------------------------------- the command line


def command_line() -> str:
    parts = [COMMAND_LINE_HEAD.rstrip(), REWRITE.replace("the docstrings", "src/holdfast/cli"), "## Exit codes"]
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts.append("\n".join(["| code | |", "|---|---|", *codes]))
    parts.extend(["## Options of every command", arguments_table(COMMON)])
    for command in COMMANDS:
        parts.extend(command_section(command))
    return "\n\n".join(parts) + "\n"


def command_section(command: Command) -> Iterator[str]:
    yield f"## `holdfast {command.name}`"
    summary_line = command.summary[0].upper() + command.summary[1:]
    yield f"{summary_line}. {' '.join(command.notes.split())}".rstrip()
    positional = [one for one in command.arguments if not one.names[0].startswith("-")]
    words = [f"[{shown_as(one)}]" if one.settings.get("nargs") == "?" else shown_as(one) for one in positional]
    yield fenced("text", " ".join(["holdfast", command.name, *words, "[options]"]))
    if command.arguments:
        yield arguments_table(command.arguments)
    if command.without:
        yield f"It does not take {' and '.join(f'`{name}`' for name in command.without)}."
    yield fenced("console", "\n".join(f"$ {example}" for example in command.examples))
    yield f"With `--json`: {linked(command.json)}"


def arguments_table(arguments: Sequence[Argument]) -> str:
    rows = ["| argument | |", "|---|---|"]
    for one in arguments:
        names = ", ".join(f"`{name}`" for name in one.names) if one.names[0].startswith("-") else f"`{shown_as(one)}`"
        value = f" `{shown_as(one)}`" if one.names[0].startswith("-") and "action" not in one.settings else ""
        must = " Required." if one.settings.get("required") else ""
        rows.append(f"| {names}{value} | {str(one.settings['help']).replace('|', chr(92) + '|')}.{must} |")
    return "\n".join(rows)


def shown_as(one: Argument) -> str:
    """Return the placeholder of an argument's value."""
    if "choices" in one.settings:
        return "\\|".join(one.settings["choices"])
    return str(one.settings.get("metavar", ""))


def linked(text: str) -> str:
    """Return the text with each public name linked to its section."""

    def link(found: re.Match[str]) -> str:
        place = next((place for place in PLACES if bare(place) == found[1]), None)
        return f"[`{found[1]}`]({topic_of(place).file}#{anchor(place)})" if place else found[0]

    return re.sub(r"`([A-Z]\w+)`", link, text)


# ---------------------------------------------------------------------------- text


def prose(text: str) -> Iterator[str]:
    """Yield a docstring as Markdown: paragraphs stay, an example becomes a block."""
    for paragraph in filter(None, text.split("\n\n")):
        yield fenced("pycon", paragraph) if paragraph.startswith(">>>") else paragraph


def summary(text: str) -> str:
    """Return the first paragraph on one line, fit for a table."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def signature(name: str, function: Callable[..., object], *, oneline: bool = False) -> str:
    """Return the signature of a function, with one parameter a line if it is long."""
    described = inspect.signature(function)
    parts: list[str] = []
    keyword_only = False
    for parameter in described.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        keyword_only |= parameter.kind is parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter))
    gives = f" -> {described.return_annotation}"
    short = f"{name}({', '.join(parts)}){gives}"
    if oneline or len(short) <= 110:
        return short
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"


def _parameter(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    return text if parameter.default is parameter.empty else f"{text} = {shown_value(parameter.default)}"


def shown_value(value: object) -> str:
    """Return a default as written in code."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "2**63 - 1" if value == 2**63 - 1 else f"{value:_}"
    if isinstance(value, str):
        return f'"{value}"'
    if repr(value) == "<factory>":
        return "{}"  # the only mutable default that a record has
    if struct_fields(type(value)) and value == type(value)():
        return f"{type(value).__name__}()"
    return repr(value)


def aliases_of(module: str) -> list[str]:
    """Return the type aliases of a module as written, without those that have a section of their own."""
    return [
        f"{node.target.id} = {ast.unparse(node.value)}"
        for node in _module(module).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.value is not None
        and ast.unparse(node.annotation) == "TypeAlias"
        and node.target.id not in map(bare, PLACES)
    ]


def documented_constants(module: str) -> dict[str, str]:
    """Return the text below each assignment of a module."""
    found: dict[str, str] = {}
    body = _module(module).body
    for node, below in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[node.target.id] = text.value
    return found


@cache
def _module(name: str) -> ast.Module:
    file = inspect.getsourcefile(sys.modules[name])
    assert file is not None
    return ast.parse(Path(file).read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------- the folder


def outdated(folder: Path = FOLDER) -> list[str]:
    """Return the files that differ from the generated ones: missing, changed, or left over."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def write(folder: Path = FOLDER) -> list[str]:
    """Update the folder. Return the names of changed files."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = outdated(folder)
    wanted = pages()
    for name in changed:
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8", newline="\n")
        else:
            (folder / name).unlink()
    return changed


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--check"]:
        stale = outdated()
        print("\n".join(f"not current: docs/reference/{name}" for name in stale) or "the reference is current")
        return 1 if stale else 0
    print("\n".join(f"wrote docs/reference/{name}" for name in write()) or "the reference is current")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
