"""Stores of every kind, named by their URL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def life_module() -> ModuleType:
    """Return the module of this folder. Loaded by its path: in importlib's import mode, tests have no module names."""
    name = "holdfast_observed_life"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("life.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def life() -> ModuleType:
    return life_module()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'observed.db'}"
    url: str = request.getfixturevalue("clean_postgres_url")
    return url
