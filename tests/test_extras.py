"""A call that needs an extra names it when it is missing. All other calls work without any extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import extras

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT_EXTRAS = """
import sys
for module in ("asyncpg", "cronsim", "jsonschema_rs", "opentelemetry"):
    sys.modules[module] = None
import holdfast

def refusal(call):
    try:
        call()
    except holdfast.InvalidRequest as error:
        return str(error)

store = holdfast.open_blocking(sys.argv[1])
plain = holdfast.events.EventType("plain")
strict = holdfast.events.EventType("strict", schema={"type": "string"})
register = lambda *types: store.processes.register(
    holdfast.ProcessRegistration("p", holdfast.processes.External(), event_types=types))
print(refusal(lambda: register(strict)))
register(plain)
store.events.append("p", "plain", {"any": "payload"})
if sys.argv[2:]:
    print(refusal(lambda: store.events.append("declared", "strict", "text")))
print(refusal(lambda: store.schedules.put("nightly", "0 3 * * *")))
print(refusal(store.schedules.fire_next))
assert len(store.schedules.list()) == 0
store.close()
print(refusal(lambda: holdfast.open_blocking("postgresql://localhost/x")))
print(refusal(lambda: holdfast.observers.OpenTelemetry()))
"""
SCHEMAS = "validation against a JSON Schema needs the module jsonschema_rs: pip install 'holdfast[schemas]'"


def test_without_extras_an_error_names_the_one_to_install(tmp_path: Path) -> None:
    file = tmp_path / "agent.db"
    with holdfast.open_blocking(file) as store:
        declared = holdfast.events.EventType("strict", schema={"type": "string"})
        store.processes.register(
            holdfast.ProcessRegistration("declared", holdfast.processes.External(), event_types=[declared])
        )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, str(file), "declared"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"event_types[0].schema: {SCHEMAS}",
        f"payload: {SCHEMAS}",
        "cron: a cron expression needs the module cronsim: pip install 'holdfast[schedules]'",
        "cron: a cron expression needs the module cronsim: pip install 'holdfast[schedules]'",
        "url: PostgreSQL needs the module asyncpg: pip install 'holdfast[postgres]'",
        "observe: OpenTelemetry needs the module opentelemetry: pip install 'holdfast[otel]'",
    ]


def test_another_missing_module_is_not_taken_for_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError), extras.needing("postgres", field="url", purpose="PostgreSQL"):
        raise ModuleNotFoundError("no module named 'ssl'", name="ssl")


@pytest.mark.parametrize("missing", ["google", "google.adk", "google.adk.sessions"])
def test_an_adapter_without_its_framework_says_what_to_install(missing: str) -> None:
    advice = r"the adapter needs the module google.adk: pip install 'holdfast\[adk\]'"
    with (
        pytest.raises(ModuleNotFoundError, match=advice),
        extras.requiring("adk", purpose="the adapter"),
    ):
        raise ModuleNotFoundError(missing, name=missing)


def test_an_adapter_passes_on_that_another_module_is_missing() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match="googly"),
        extras.requiring("adk", purpose="the adapter"),
    ):
        raise ModuleNotFoundError("googly", name="googly")


def test_every_extra_that_a_call_needs_is_declared() -> None:
    assert set(extras.MODULES) == set(PROJECT["optional-dependencies"])
    required = "".join(PROJECT["dependencies"]).replace("-", "_")
    assert not [module for modules in extras.MODULES.values() for module in modules if module in required]


IMPORTS_AN_EXTRA = {
    "holdfast.adapters.a2a:HoldfastTaskStore": "a2a",
    "holdfast.adapters.adk:HoldfastSessionService": "adk",
    "holdfast.adapters.langgraph:HoldfastSaver": "langgraph",
    "holdfast.adapters.langgraph:HoldfastStore": "langgraph",
    "holdfast.adapters.mcp:HoldfastEventStore": "mcp",
    "holdfast.adapters.openai_agents:HoldfastSession": "openai-agents",
    "holdfast.adapters.pydantic_ai:HoldfastConversationStore": "pydantic-ai",
    "holdfast.adapters.pydantic_ai:HoldfastDurability": "pydantic-ai",
    "holdfast.inspector:inspector": "ui",
    "holdfast.testing.contract:LeaseContract": "testing",
}
"""The public names whose import needs an extra."""

IN_A_PLAIN_INSTALLATION = """
import importlib, sys
required = {"apsw", "backports", "msgspec", "typing_extensions", "holdfast"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in required | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for place in sys.argv[1:]:
    module, _, name = place.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, ValueError) as error:
        print(error)
try:
    from holdfast.cli import main
    sys.exit(main(["ui", "--url", "memory:"]))
except BaseException as error:
    print(repr(error))
"""


def test_without_any_other_package_each_import_names_its_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PLAIN_INSTALLATION, *IMPORTS_AN_EXTRA], capture_output=True, text=True, check=False
    )
    said = done.stdout.splitlines()
    assert [re.findall(r"pip install 'holdfast\[(.*)\]'$", line) for line in said[:-1]] == [
        [extra] for extra in IMPORTS_AN_EXTRA.values()
    ], done
    assert done.stderr.rstrip().endswith("pip install 'holdfast[ui]'"), done


def test_every_module_that_the_package_imports_is_required_or_of_an_extra() -> None:
    required = {"apsw", "msgspec", "backports", "compression"}
    of_extras = {module for modules in extras.MODULES.values() for module in modules}

    def is_known(module: str) -> bool:
        return module.partition(".")[0] in {"holdfast", *required, *sys.stdlib_module_names} or any(
            f"{module}.".startswith(f"{known}.") for known in of_extras
        )

    package = Path(extras.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert set(IMPORT.findall(sources[package / "rules" / "cron.py"])) > {"cronsim"}
    unknown = {
        f"{path.relative_to(package)}: {module}"
        for path, source in sources.items()
        if not all(map(is_known, IMPORT.findall(source)))
        for module in imported_modules(source)
        if not is_known(module)
    }
    assert unknown == set()


IMPORT = re.compile(r"^ *(?:from|import) ([a-z_][\w.]*)", re.MULTILINE)


def imported_modules(source: str) -> Iterator[str]:
    """Return the modules that a file imports when it runs, not only for types."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        waiting += ast.iter_child_nodes(node)
