"""Every public name exists, and none is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

import holdfast
from holdfast import _api, worker


def test_every_public_name_is_that_of_the_module_of_public_names() -> None:
    worker_names = ["Retry", "Worker"]
    assert holdfast.__all__ == sorted([*_api.__all__, *worker_names])
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is getattr(worker if name in worker_names else _api, name)
    assert set(holdfast.__all__) <= set(dir(holdfast))


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
def test_a_module_of_ours_is_a_module_in_whatever_order_it_is_imported(module: str) -> None:
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
