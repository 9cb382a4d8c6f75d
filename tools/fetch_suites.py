"""Fetch the tests of frameworks, which their source distributions carry, below `build/suites`.

Usage: python tools/fetch_suites.py openai-agents ...

The version and the hash of each are those of `uv.lock`. A suite that is unpacked already is not fetched again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "suites"
TIMEOUT_S = 300


class Source(NamedTuple):
    """A source distribution as the lock pins it."""

    name: str
    version: str
    digest: str

    @property
    def folder(self) -> Path:
        """The folder that it is unpacked into."""
        return FOLDER / f"{self.name}-{self.version}"


def main(names: Sequence[str]) -> int:
    """Fetch each, and print the folders."""
    for name in names:
        print(fetch(name))
    return 0


def locked(name: str) -> Source:
    """Return the pinned source distribution of a package."""
    packages: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    for package in packages:
        if package["name"] == name:
            return Source(name, package["version"], package["sdist"]["hash"])
    raise SystemExit(f"{name} is not in uv.lock")


def fetch(name: str) -> Path:
    """Return the folder of the unpacked source distribution. Download it if it is not there."""
    source = locked(name)
    if source.folder.is_dir():
        return source.folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        archive = _download(source, Path(scratch))
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        (unpacked,) = [path for path in Path(scratch).iterdir() if path.is_dir()]
        try:
            unpacked.rename(source.folder)
        except OSError:
            # Another process was faster.
            if not source.folder.is_dir():
                raise
    return source.folder


def _download(source: Source, folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{source.name}=={source.version} --hash={source.digest}\n", encoding="utf-8")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", source.name, "--require-hashes"]
    command = [*_pip(), "download", *options, "--requirement", str(wanted), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=_environment())
    if done.returncode:
        raise SystemExit(f"{source.name} {source.version} cannot be fetched:\n{done.stderr}")
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _pip() -> list[str]:
    """Return a command that runs pip: the environment's own, or that of the system where the environment has none."""
    known = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if not known.returncode:
        return [sys.executable, "-m", "pip"]
    beside = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != sys.exec_prefix]
    found = shutil.which("pip3", path=os.pathsep.join(beside)) or shutil.which("pip", path=os.pathsep.join(beside))
    if found is None:
        raise SystemExit("no pip found, which fetches the suites")
    return [found]


def _environment() -> dict[str, str]:
    dropped = {"PYTHONPATH", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
