"""Builds the wheel and tries it as a user would: installed in a fresh environment, outside this tree.

Usage: python tools/try_wheel.py [--this-python]

Does so on every Python from 3.11 to 3.14 that is found here, or only on the one that runs it. First with what
`pip install holdfast` brings and no extra: every public name, `holdfast --version` and the demo. Then with
`holdfast[testing]`: a part of the shipped contract on memory and SQLite.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINORS = range(11, 15)
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))

EVERY_NAME = """
import sys
import holdfast
from holdfast.public_names import places, value_at
for place in places():
    value_at(place)
assert sys.prefix in holdfast.__file__, holdfast.__file__
"""
"""Run with `-I`: neither this folder nor a variable adds to the path."""

CONFTEST = """
import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")
from holdfast.testing.contract import LocalBench


@pytest.fixture(params=["memory", "sqlite"])
def bench(request, tmp_path):
    opened = LocalBench(request.param, "blocking", tmp_path)
    yield opened
    opened.close()
"""

CONTRACT = """
from holdfast.testing.contract import ClaimContract, CommitContract, EventContract, LeaseContract


class TestClaims(ClaimContract): ...
class TestCommits(CommitContract): ...
class TestEvents(EventContract): ...
class TestLeases(LeaseContract): ...
"""


def main() -> int:
    """Try the wheel on every interpreter. Return 1 if none is found."""
    found = dict(interpreters())
    if "--this-python" in sys.argv[1:]:
        found = {version: python for version, python in found.items() if python == sys.executable}
    else:
        missing = [f"3.{minor}" for minor in MINORS if f"3.{minor}" not in found]
        print(f"found Python {', '.join(found) or 'none'}; not found: {', '.join(missing) or 'none'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as folder:
        wheel = build(Path(folder))
        pins = Path(folder) / "pins.txt"
        run([UV, "export", "-q", "--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "-o", pins], ROOT)
        for version, python in found.items():
            try_on(python, wheel, pins, Path(folder) / version)
            print(f"Python {version}: ok", flush=True)
    return 0 if found else 1


def interpreters() -> Iterator[tuple[str, str]]:
    """Yield each supported version with the first interpreter found: on PATH, or where pyenv keeps its own."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in MINORS:
        version = f"3.{minor}"
        candidates = [*sorted(map(str, kept.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")]
        if sys.version_info[:2] == (3, minor):
            candidates.insert(0, sys.executable)
        for candidate in filter(None, candidates):
            if version_of(candidate) == version:
                yield version, candidate
                break


def version_of(python: str) -> str:
    """Return the version that a program reports; empty if it does not run."""
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    answer = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def build(folder: Path) -> Path:
    """Return the wheel of this tree."""
    run([UV, "build", "-q", "--wheel", "--out-dir", folder], ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_on(python: str, wheel: Path, pins: Path, folder: Path) -> None:
    """Install the wheel for one interpreter, and use it."""
    run([UV, "venv", "-q", "--no-project", "--python", python, folder / "venv"], folder.parent)
    scripts = folder / "venv" / "bin"
    install: list[str | Path] = [UV, "pip", "install", "-q", "--python", scripts / "python", "--constraint", pins]
    run([*install, wheel], folder)
    run([scripts / "python", "-I", "-c", EVERY_NAME], folder)
    run([scripts / "holdfast", "--version"], folder)
    run([scripts / "holdfast", "demo", "--json"], folder, quiet=True)
    run([*install, f"holdfast[testing] @ {wheel.as_uri()}"], folder)
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_contract.py").write_text(CONTRACT, encoding="utf-8")
    run([scripts / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], folder)


def run(command: Sequence[str | Path], folder: Path, *, quiet: bool = False) -> None:
    """Run a command without this tree on its path."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    output = subprocess.DEVNULL if quiet else None
    subprocess.run(command, cwd=folder, env=inherited, check=True, stdout=output)


if __name__ == "__main__":
    sys.exit(main())
