"""Makes completion scripts from the parser, so that a shell offers exactly the words that the parser takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call

SHELLS = ("bash", "zsh", "fish")


class Place(NamedTuple):
    """A point of the command tree: the words that may follow, and the options that take a value (listed or free)."""

    path: tuple[str, ...]
    words: list[tuple[str, str]]
    choices: dict[str, list[str]]
    valued: list[str]


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Place]:
    """Yield every point of the tree below a parser."""
    words: list[tuple[str, str]] = []
    choices: dict[str, list[str]] = {}
    valued: list[str] = []
    below: list[tuple[str, Any]] = []
    # argparse has no public way to read a parser back.
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            summaries = {one.dest: one.help or "" for one in action._choices_actions}  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
            named: dict[str, Any] = dict(action.choices)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            words.extend((name, str(summaries.get(name, ""))) for name in named)
            below.extend(named.items())
            continue
        words.extend((name, action.help or "") for name in action.option_strings)
        listed = [str(one) for one in action.choices or ()]
        if not action.option_strings:
            words.extend((one, "") for one in listed)
        for name in action.option_strings if action.nargs != 0 else ():
            valued.append(name)
            choices[name] = listed
    yield Place(path, words, choices, valued)
    for name, inner in below:
        yield from places(inner, (*path, name))


def bash(found: list[Place]) -> str:
    """Return the script for bash."""
    valued = sorted({name for place in found for name in place.valued})
    cases = "".join(
        f'    "{" ".join(place.path)}") words="{" ".join(word for word, _ in place.words)}" ;;\n' for place in found
    )
    listed = {name: words for place in found for name, words in place.choices.items() if words}
    values = "".join(
        f'    {name}) mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$current"); return ;;\n'
        for name, words in sorted(listed.items())
    )
    known = " ".join(f'["{" ".join(place.path)}"]=1' for place in found if place.path)
    free = "|".join(name for name in valued if name not in listed)
    return f"""\
# bash completion for holdfast; load it with: source <(holdfast completion bash)
_holdfast() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word longer words="" index
  local -A known=({known})
  for ((index = 1; index < COMP_CWORD; index++)); do
    word="${{COMP_WORDS[index]}}"
    case "$word" in
    {"|".join(valued)}) ((index++)); continue ;;
    esac
    longer="${{path:+$path }}$word"
    [[ -n "${{known[$longer]}}" ]] && path="$longer"
  done
  case "$before" in
{values}    {free}) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
  esac
  case "$path" in
{cases}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -F _holdfast holdfast
"""


def zsh(found: list[Place]) -> str:
    """Return the script for zsh."""
    valued = sorted({name for place in found for name in place.valued})
    cases = "".join(
        f'    "{" ".join(place.path)}") offers=({" ".join(_zsh_word(word, text) for word, text in place.words)}) ;;\n'
        for place in found
    )
    listed = {name: words for place in found for name, words in place.choices.items() if words}
    values = "".join(f"    {name}) compadd -- {' '.join(words)}; return ;;\n" for name, words in sorted(listed.items()))
    known = " ".join(f'"{" ".join(place.path)}" 1' for place in found if place.path)
    return f"""\
#compdef holdfast
# zsh completion for holdfast; load it with: source <(holdfast completion zsh)
_holdfast() {{
  local word longer where="" index
  local -a offers
  local -A known=({known})
  for ((index = 2; index < CURRENT; index++)); do
    word="${{words[index]}}"
    case "$word" in
    {"|".join(valued)}) ((index++)); continue ;;
    esac
    longer="${{where:+$where }}$word"
    [[ -n "${{known[$longer]}}" ]] && where="$longer"
  done
  case "${{words[CURRENT-1]}}" in
{values}    {"|".join(name for name in valued if name not in listed)}) _files; return ;;
  esac
  case "$where" in
{cases}  esac
  _describe holdfast offers
}}
compdef _holdfast holdfast
"""


def _zsh_word(word: str, text: str) -> str:
    return "'" + f"{word}:{text}".replace("'", "'\\''") + "'"


def fish(found: list[Place]) -> str:
    """Return the script for fish."""
    lines = [
        "# fish completion for holdfast; load it with: holdfast completion fish | source",
        "complete -c holdfast -f",
    ]
    groups = {place.path[0] for place in found if len(place.path) > 1}
    for place in found:
        if not place.path:
            where = "__fish_use_subcommand"
        else:
            # Offer a group's own words until one of its commands is typed.
            seen = [f"__fish_seen_subcommand_from {word}" for word in place.path]
            below = [word for word, _ in place.words if not word.startswith("-")] if place.path[0] in groups else []
            if len(place.path) == 1 and below:
                seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
            where = "; and ".join(seen)
        for word, text in place.words:
            lines.append(f"complete -c holdfast -n '{where}' {_fish_word(place, word)} -d {_fish_text(text)}")
    return "\n".join(lines) + "\n"


def _fish_word(place: Place, word: str) -> str:
    if not word.startswith("-"):
        return f"-a {word}"
    name = f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
    if word not in place.valued:
        return name
    listed = place.choices.get(word, [])
    return f"{name} -x -a '{' '.join(listed)}'" if listed else f"{name} -r -F"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def completion(call: Call) -> int:
    """Print the script."""
    from holdfast.cli.parser import build

    made = {"bash": bash, "zsh": zsh, "fish": fish}[call.options.shell](list(places(build())))
    if call.options.json:
        call.terminal.json({"shell": call.options.shell, "script": made})
    else:
        call.terminal.text(made.rstrip())
    return 0


COMMANDS = (
    Command(
        "completion",
        "print a completion script for your shell",
        completion,
        (argument("shell", choices=SHELLS, help="bash, zsh or fish"),),
        ("source <(holdfast completion bash)", "holdfast completion fish > ~/.config/fish/completions/holdfast.fish"),
        "An object: `shell`, `script`.",
        opens_a_store=False,
        without=("--url", "--schema", "--pooler", "--attachments", "--patience"),
    ),
)
