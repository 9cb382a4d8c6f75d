"""Every public name exists, and none is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

import holdfast
from holdfast import _api, worker
from holdfast.public_names import advice, places, value_at


def test_every_public_name_is_that_of_the_module_of_public_names() -> None:
    worker_names = ["Retry", "Worker"]
    assert holdfast.__all__ == sorted([*_api.__all__, *worker_names])
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is getattr(worker if name in worker_names else _api, name)
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_the_top_level_has_few_names_and_its_modules_the_rest() -> None:
    assert len(holdfast.__all__) <= 50
    assert len(places()) == len(set(places())) >= 190
    values = [id(value_at(place)) for place in places() if isinstance(value_at(place), type)]
    assert len(values) == len(set(values)), "a public class has two places"


def test_every_record_and_every_error_is_public_in_one_place() -> None:
    public = [value_at(place) for place in places()]
    hidden = [one for one in vars(holdfast.errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert [one.__name__ for one in hidden if one not in public] == []


@pytest.mark.parametrize("module", holdfast.MODULES)
def test_a_module_of_public_names_needs_no_import_of_its_own(module: str) -> None:
    assert run_fresh(f"import holdfast; print(holdfast.{module}.__name__)") == f"holdfast.{module}\n"
    assert module in dir(holdfast)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Const", "it is `holdfast.events.Const`"),
        ("External", "it is `holdfast.processes.External`"),
        ("PoolTimeout", "it is `holdfast.errors.PoolTimeout`"),
        ("BlockingSession", "it is `holdfast.blocking.Session`"),
        ("BlockingTurn", "it is `holdfast.blocking.Turn`"),
        ("Comit", "did you mean `holdfast.Commit`?"),
        ("SubscriptonDraft", "did you mean `holdfast.triggers.SubscriptionDraft`?"),
        ("open_blockin", "did you mean `holdfast.open_blocking`?"),
    ],
)
def test_a_wrong_name_is_reported_with_its_place(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as info:
        getattr(holdfast, name)
    assert str(info.value) == f"module 'holdfast' has no attribute '{name}': {said}"


def test_a_name_that_resembles_none_gets_no_advice() -> None:
    assert advice("zzz") == ""


def test_a_star_import_brings_exactly_the_public_names() -> None:
    namespace: dict[str, Any] = {}
    exec("from holdfast import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(holdfast.__all__)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert holdfast.__version__ == metadata.version("holdfast")


@pytest.mark.parametrize("name", ["nonsense", "__wrapped__", "annotations_of"])
def test_any_other_name_is_missing(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'holdfast' has no attribute '{name}'"):
        getattr(holdfast, name)
    with pytest.raises(ImportError):
        exec(f"from holdfast import {name}")


def run_fresh(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_holdfast_alone_loads_no_store_but_notices_forks() -> None:
    loaded = run_fresh("import sys, holdfast; print(*sys.modules, sep='\\n')").split()
    assert {one for one in loaded if one.startswith("holdfast")} == {"holdfast", "holdfast.inherited_files"}
    assert {"msgspec", "apsw", "asyncpg"}.isdisjoint(loaded)


@pytest.mark.parametrize("module", ["store", "blocking", "errors", "records", "testing", "cli"])
def test_a_module_stays_a_module_in_any_order_of_imports(module: str) -> None:
    assert run_fresh(f"from holdfast import {module}; print({module}.__name__)") == f"holdfast.{module}\n"
    assert run_fresh(f"import holdfast; holdfast.Commit; from holdfast import {module}; print({module}.__name__)") == (
        f"holdfast.{module}\n"
    )


def test_many_threads_may_ask_for_the_first_name_together() -> None:
    program = """
import threading, sys
sys.setswitchinterval(1e-6)
import holdfast
start, found = threading.Barrier(16), []
def ask(number):
    start.wait(60)
    found.append(getattr(holdfast, ("Commit", "open", "BlockingStore", "InvalidRequest")[number % 4]))
threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
for one in threads: one.start()
for one in threads: one.join(60)
print(len(found), len(set(found)))
"""
    assert run_fresh(program) == "16 4\n"


def test_a_facet_names_itself_and_its_store() -> None:
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        shown = [repr(facet) for facet in (store.queue, store.processes, store.sessions, session.attachments)]
    assert shown == [f"Blocking{name}(memory:)" for name in ("Queue", "Processes", "Sessions", "SessionAttachments")]
