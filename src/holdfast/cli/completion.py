"""Makes completion scripts from the parser, so that a shell offers exactly the words that the parser takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call

SHELLS = ("bash", "zsh", "fish")


KINDS_OF_IDS = {
    "SESSION": "sessions",
    "PROCESS": "processes",
    "SCHEDULE": "schedules",
    "HANDLE": "subscriptions",
    "BATCH": "batches",
    "ID": "any",
}
"""The ids that an argument of this name takes, as `holdfast complete` calls them."""


BASH_IDS = """\
_holdfast_ids() {
  local quote="" typed="$current" before="" one
  local -a found
  case "$current" in [\\'\\"]*) quote="${current:0:1}"; typed="${current:1}" ;; esac
  [[ "$quote" == "'" ]] || typed="${typed//\\\\/}"
  mapfile -t found < <(holdfast complete "${store[@]}" "$1" -- "$typed" 2>/dev/null)
  # Bash replaces only the text after the last colon, unless the word is quoted.
  [[ -z "$quote" && "$COMP_WORDBREAKS" == *:* ]] && before="${current%"${current##*:}"}"
  COMPREPLY=()
  for one in "${found[@]}"; do
    [[ -z "$quote" ]] && printf -v one %q "$one"
    COMPREPLY+=("${one#"$before"}")
  done
}
"""
"""Offers ids: as the shell must read them, and without the part that it does not replace."""
BASH_WORDS = """\
  # Bash has split the line at colons and equals signs, too: join what no blank separates.
  for ((index = 0; index <= COMP_CWORD; index++)); do
    word="${COMP_WORDS[index]}"
    if ((index > 0)) && [[ -n "$word" && "$line" != [[:space:]]* ]]; then
      typed[${#typed[@]}-1]+="$word"
    else
      typed+=("$word")
      line="${line#"${line%%[![:space:]]*}"}"
    fi
    line="${line#"$word"}"
  done
"""


FISH_STORE = """\
function __holdfast_store
  set -l words (commandline -opc | string unescape)
  set -l at 2
  while test $at -le (count $words)
    switch $words[$at]
      case --url --schema --pooler
        set -l value (math $at + 1)
        test $value -le (count $words); and printf "%s\\n" $words[$at] $words[$value]
        set at $value
      case "--url=*" "--schema=*" "--pooler=*"
        printf "%s\\n" $words[$at]
    end
    set at (math $at + 1)
  end
end
function __holdfast_given
  # The words behind a command of so many words that are neither options nor values of options.
  set -l words (commandline -opc | string unescape)
  set -l given
  set -l plain no
  set -l at 2
  while test $at -le (count $words)
    if test $plain = no; and contains -- $words[$at] {valued}
      set at (math $at + 1)
    else if test $plain = yes; or not string match -q -- "-*" $words[$at]
      set -a given $words[$at]
    else if test $words[$at] = --
      set plain yes
    end
    set at (math $at + 1)
  end
  for number in (seq $argv[1])
    set -e given[1]
  end
  test (count $given) -gt 0; and printf "%s\\n" $given
end
function __holdfast_batches
  set -l given (__holdfast_given 2)
  holdfast complete (__holdfast_store) --session=$given[1] batches -- (commandline -ct | string unescape) 2>/dev/null
end"""
"""Repeats the options that name the store, returns the arguments that are typed, and offers batches of a session."""


class Place(NamedTuple):
    """A point of the command tree: the words that may follow, and the options that take a value (listed or free)."""

    path: tuple[str, ...]
    words: list[tuple[str, str]]
    choices: dict[str, list[str]]
    valued: list[str]
    ids: str | None
    """The kind of ids that its first argument is, if it is one."""
    has_batch: bool
    """True if its second argument is a batch of the session that the first one names."""
    options_of_ids: dict[str, str]
    """Options whose value is an id, with its kind."""


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Place]:
    """Yield every point of the tree below a parser."""
    words: list[tuple[str, str]] = []
    choices: dict[str, list[str]] = {}
    valued: list[str] = []
    below: list[tuple[str, Any]] = []
    ids: list[str | None] = []
    options_of_ids: dict[str, str] = {}
    # argparse has no public way to read a parser back.
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            summaries = {one.dest: one.help or "" for one in action._choices_actions}  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
            named: dict[str, Any] = dict(action.choices)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            words.extend((name, str(summaries.get(name, ""))) for name in named)
            below.extend(named.items())
            continue
        kind = KINDS_OF_IDS.get(str(action.metavar))
        if not action.option_strings:
            ids.append(kind)
        elif kind is not None:
            options_of_ids.update(dict.fromkeys(action.option_strings, kind))
        words.extend((name, action.help or "") for name in action.option_strings)
        listed = [str(one) for one in action.choices or ()]
        if not action.option_strings:
            words.extend((one, "") for one in listed)
        for name in action.option_strings if action.nargs != 0 else ():
            valued.append(name)
            choices[name] = listed
    yield Place(path, words, choices, valued, ids[0] if ids else None, ids[1:2] == ["batches"], options_of_ids)
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
    of_ids = {name: kind for place in found for name, kind in place.options_of_ids.items()}
    values += "".join(f"    {name}) _holdfast_ids {kind}; return ;;\n" for name, kind in sorted(of_ids.items()))
    free = "|".join(name for name in valued if name not in listed and name not in of_ids)
    ids, batches = _cases_of_ids(found)
    return f"""\
# bash completion for holdfast; load it with: source <(holdfast completion bash)
{BASH_IDS}_holdfast() {{
  local current before path="" word longer words="" index line="${{COMP_LINE:0:COMP_POINT}}"
  local kind="" batches="" given=0 first="" plain=""
  local -a typed=() store=()
  local -A known=({known})
{BASH_WORDS}  current="${{typed[${{#typed[@]}}-1]}}" before="${{typed[${{#typed[@]}}-2]}}"
  for ((index = 1; index < ${{#typed[@]}} - 1; index++)); do
    word="${{typed[index]}}"
    case "$word" in
    --url|--schema|--pooler) store+=("$word" "${{typed[index+1]}}"); ((index++)); continue ;;
    --url=*|--schema=*|--pooler=*) store+=("$word"); continue ;;
    {"|".join(valued)}) ((index++)); continue ;;
    --) plain=yes; continue ;;
    -*) [[ -n "$plain" ]] || continue ;;
    esac
    longer="${{path:+$path }}$word"
    if [[ -n "${{known[$longer]}}" ]]; then path="$longer"; else first="${{first:-$word}}"; ((given += 1)); fi
  done
  case "$before" in
{values}    {free}) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
  esac
  case "$path" in
{ids}  esac
  case "$path" in
    {batches}) batches=yes ;;
  esac
  if [[ -n "$kind" && "$given" == 0 && ("$current" != -* || -n "$plain") ]]; then _holdfast_ids "$kind"; return; fi
  if [[ -n "$batches" && "$given" == 1 && ("$current" != -* || -n "$plain") ]]; then
    first=${{first//[\\\\\\'\\"]/}}
    store+=("--session=$first")
    _holdfast_ids batches
    return
  fi
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
    of_ids = {name: kind for place in found for name, kind in place.options_of_ids.items()}
    values += "".join(f"    {name}) _holdfast_ids {kind}; return ;;\n" for name, kind in sorted(of_ids.items()))
    ids, batches = _cases_of_ids(found)
    return f"""\
#compdef holdfast
# zsh completion for holdfast; load it with: source <(holdfast completion zsh)
_holdfast_ids() {{
  local -a found
  found=("${{(@f)$(holdfast complete "${{store[@]}}" "$1" -- "${{(Q)PREFIX}}" 2>/dev/null)}}")
  compadd -a found
}}
_holdfast() {{
  local word longer where="" index kind="" batches="" given=0 first="" plain=""
  local -a store
  local -a offers
  local -A known=({known})
  for ((index = 2; index < CURRENT; index++)); do
    word="${{words[index]}}"
    case "$word" in
    --url|--schema|--pooler) store+=("$word" "${{(Q)words[index+1]}}"); ((index++)); continue ;;
    --url=*|--schema=*|--pooler=*) store+=("${{(Q)word}}"); continue ;;
    {"|".join(valued)}) ((index++)); continue ;;
    --) plain=yes; continue ;;
    -*) [[ -n "$plain" ]] || continue ;;
    esac
    longer="${{where:+$where }}$word"
    if [[ -n "${{known[$longer]}}" ]]; then where="$longer"; else first="${{first:-${{(Q)word}}}}"; ((given += 1)); fi
  done
  case "${{words[CURRENT-1]}}" in
{values}    {"|".join(name for name in valued if name not in listed and name not in of_ids)}) _files; return ;;
  esac
  case "$where" in
{ids}  esac
  case "$where" in
    {batches}) batches=yes ;;
  esac
  if [[ -n "$kind" && "$given" == 0 && ("$PREFIX" != -* || -n "$plain") ]]; then _holdfast_ids "$kind"; return; fi
  if [[ -n "$batches" && "$given" == 1 && ("$PREFIX" != -* || -n "$plain") ]]; then
    store+=("--session=$first"); _holdfast_ids batches; return
  fi
  case "$where" in
{cases}  esac
  _describe holdfast offers
}}
compdef _holdfast holdfast
"""


def _cases_of_ids(found: list[Place]) -> tuple[str, str]:
    """Return the cases of the commands that take an id, and the pattern of those that take a batch behind it."""
    ids = "".join(f'    "{" ".join(place.path)}") kind={place.ids} ;;\n' for place in found if place.ids)
    return ids, "|".join(f'"{" ".join(place.path)}"' for place in found if place.has_batch)


def _zsh_word(word: str, text: str) -> str:
    return "'" + f"{word}:{text}".replace("'", "'\\''") + "'"


def fish(found: list[Place]) -> str:
    """Return the script for fish."""
    lines = [
        "# fish completion for holdfast; load it with: holdfast completion fish | source",
        FISH_STORE.replace("{valued}", " ".join(sorted({name for place in found for name in place.valued}))),
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
        argument = f"{where}; and test (count (__holdfast_given {len(place.path)})) -eq"
        if place.has_batch:
            lines.append(f"complete -c holdfast -n '{argument} 1' -a '(__holdfast_batches)'")
        if place.ids is not None:
            lines.append(f"complete -c holdfast -n '{argument} 0' -a '{_fish_ids(place.ids)}'")
        for word, text in place.words:
            lines.append(f"complete -c holdfast -n '{where}' {_fish_word(place, word)} -d {_fish_text(text)}")
    return "\n".join(lines) + "\n"


def _fish_word(place: Place, word: str) -> str:
    if not word.startswith("-"):
        return f"-a {word}"
    name = f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
    if word not in place.valued:
        return name
    if word in place.options_of_ids:
        return f"{name} -x -a '{_fish_ids(place.options_of_ids[word])}'"
    listed = place.choices.get(word, [])
    return f"{name} -x -a '{' '.join(listed)}'" if listed else f"{name} -r -F"


def _fish_ids(kind: str) -> str:
    return f"(holdfast complete (__holdfast_store) {kind} -- (commandline -ct | string unescape) 2>/dev/null)"


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
        without=("--url", "--schema", "--pooler", "--attachments", "--lock-timeout"),
    ),
)
