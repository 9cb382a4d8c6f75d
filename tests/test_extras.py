"""A call that needs an extra names it when it is missing. All other calls work without any extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
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
    advice = r"the adapter for Google ADK needs the module google.adk: pip install 'holdfast\[adk\]'"
    with pytest.raises(ModuleNotFoundError, match=advice), extras.adapting("adk", framework="Google ADK"):
        raise ModuleNotFoundError(missing, name=missing)


def test_an_adapter_passes_on_that_another_module_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="googly"), extras.adapting("adk", framework="Google ADK"):
        raise ModuleNotFoundError("googly", name="googly")


def test_every_extra_that_a_call_needs_is_declared() -> None:
    assert {*extras.MODULES, "testing"} == set(PROJECT["optional-dependencies"])
    required = "".join(PROJECT["dependencies"]).replace("-", "_")
    assert not [module for module in extras.MODULES.values() if module in required]
