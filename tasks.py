"""The one command a fresh checkout needs: `python3 tasks.py test` or `python3 tasks.py example`.

Uses nothing but the standard library and pip. It builds `.venv` from `uv.lock` the first time, and again whenever
the lock or `pyproject.toml` has changed, then runs the task inside it. The example needs only what Holdfast itself
needs; any other task installs the tools as well.
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

UV_VERSION = "0.13.7"
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / ".holdfast-synced"
SYNC_INPUTS = ("uv.lock", "pyproject.toml", "tasks.py")
TYPED_PATHS = ("src", "tests/typing", "tools", "tasks.py")
FETCHED_POOLER = ROOT / "build" / "pgbouncer"
BYTECODE = ROOT / "build" / "bytecode"
PYTEST_WORKERS = 3
"""One more than a small machine has cores: a test often waits for a server or another process."""
SCRATCH_BYTES = 4 * 1024**3

Command = Sequence[str | Path]

QUICK_BENCHMARKS: Command = (PYTHON, "-m", "benchmarks", "--quick", "--rounds", "1", "--draw", "6")
"""A sixth of the benchmarks, others each time, with small sizes. The speeds mean nothing; it shows that they run."""

DECISIONS = "src/holdfast/rules,src/holdfast/operations"
"""The part that every run measures. All of its lines and branches must be reached."""
WHOLE_PACKAGE = "src/holdfast"

NOT_ADAPTERS: Command = ("--ignore=tests/adapters",)
ADAPTER_TESTS: Command = ("tests/adapters", "-n", "2", "--dist", "worksteal", "--all-frameworks")

SLOW_FILES = (
    "tests/rules/test_schema_cost.py",
    "tests/contract/test_bounds.py",
    "tests/contract/test_hostile.py",
    "tests/contract/test_pages.py",
    "tests/contract/test_races.py",
    "tests/contract/test_second_process.py",
)
"""Left to `test`: slow hostile input, large pages, races, and cases that start processes."""
FAST_TESTS: Command = (
    *(PYTHON, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "--no-postgres", "--draw"),
    *("tests/rules", "tests/contract"),
    *("-k", "memory-blocking or sqlite-blocking or (rules and not blocking and not async)"),
    *(f"--ignore={path}" for path in SLOW_FILES),
)


def main(argv: Sequence[str]) -> int:
    """Prepare the environment and run one task. Return the exit code of the first command to fail."""
    tasks: dict[str, Callable[[list[str]], None]] = {
        "example": run_example,
        "test": lambda _: run_everything(),
        "fast": lambda _: run_fast(),
        "lint": lambda _: run_lint(),
        "types": lambda _: run_types(),
        "docs": lambda _: run_docs(),
        "wheel": lambda _: run_wheel(),
        "adapters": lambda _: run_adapters(),
        "coverage": lambda _: run_covered_tests(WHOLE_PACKAGE),
        "unit": run_unit,
    }
    parser = argparse.ArgumentParser(prog="tasks.py", description=__doc__)
    parser.add_argument(
        "task",
        choices=tasks,
        help="example [demo args] | test (everything) | fast (no server) | lint | types | docs | wheel | "
        "adapters (with the frameworks' own tests) | coverage (of the whole package) | unit [args]",
    )
    options, rest = parser.parse_known_args(argv)
    if rest and options.task not in {"example", "unit"}:
        parser.error(f"only 'example' and 'unit' take further arguments, got: {shlex.join(rest)}")
    try:
        sync(tools=options.task != "example")
        tasks[options.task](rest)
    except subprocess.CalledProcessError as failure:
        print(f"\nFAILED (exit code {failure.returncode}): {describe(failure.cmd)}", file=sys.stderr)
        # A command ended by signal N has return code -N; shells spell that 128 + N.
        return failure.returncode if failure.returncode > 0 else 128 - failure.returncode
    return 0


# ---------------------------------------------------------------------------- tasks


def run_example(arguments: list[str]) -> None:
    """Run the demo, with its arguments passed on."""
    run([SCRIPTS / "holdfast", "demo", *arguments])


def run_everything() -> None:
    run_lint()
    with beside("benchmarks", QUICK_BENCHMARKS):
        # One of the two type checkers takes as long as the steps below it together, and each uses one core.
        with beside("basedpyright", basedpyright(typed_paths())):
            step("mypy", mypy(typed_paths()))
            run_docs()
            step("wheel", [PYTHON, "tools/try_wheel.py", "--this-python"])
            # Compiles the tests once, and not in each worker.
            step("collect", [PYTHON, "-m", "pytest", "-qqq", "--collect-only", "--no-summary", *NOT_ADAPTERS])
        run_covered_tests(DECISIONS)


def run_fast() -> None:
    """Run a minute of checks without a server: lint, changed types, rules, and the contract on memory and SQLite."""
    run_lint()
    with scratch_folder() as scratch, beside("pytest", FAST_TESTS, TMPDIR=scratch):
        changed = changed_typed_files()
        if changed:
            check_types(changed)


def run_lint() -> None:
    step("ruff check", [SCRIPTS / "ruff", "check", "."])
    step("ruff format", [SCRIPTS / "ruff", "format", "--check", "."])
    step("imports", [SCRIPTS / "lint-imports"])


def run_types() -> None:
    check_types(typed_paths())


def typed_paths() -> list[str]:
    # mypy refuses a path that does not exist.
    return [path for path in TYPED_PATHS if (ROOT / path).exists()]


def check_types(paths: Sequence[str]) -> None:
    step("basedpyright", basedpyright(paths))
    step("mypy", mypy(paths))


def basedpyright(paths: Sequence[str]) -> Command:
    return [SCRIPTS / "basedpyright", "--pythonpath", PYTHON, *paths]


def mypy(paths: Sequence[str]) -> Command:
    return [SCRIPTS / "mypy", *paths]


def changed_typed_files() -> list[str]:
    """Return typed files that differ from the clone's origin branch, or from the last commit if there is none."""
    base = ask_git("merge-base", "HEAD", "origin/HEAD") or ["HEAD"]
    changed = ask_git("diff", "--name-only", "--diff-filter=d", base[0])
    changed += ask_git("ls-files", "--others", "--exclude-standard")
    folders = tuple(f"{path}/" for path in TYPED_PATHS if not path.endswith(".py"))
    return [path for path in changed if path.endswith(".py") and (path in TYPED_PATHS or path.startswith(folders))]


def ask_git(*arguments: str) -> list[str]:
    """Return the lines of git's output; none if it fails."""
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    return [] if answer.returncode else answer.stdout.splitlines()


def run_docs() -> None:
    """Build the pages as a site in build/site. Dead links and unreachable pages are errors."""
    step("docs", [SCRIPTS / "mkdocs", "build", "--strict"])


def run_wheel() -> None:
    """Build the wheel, and try it in fresh environments on every Python found: the tree is not on their path."""
    step("wheel", [PYTHON, "tools/try_wheel.py"])


def run_covered_tests(part: str) -> None:
    """Run every test, and require that they reach the lines of a part of the package."""
    # slipcover removes its probe from a line that was reached, so that measuring costs a seventh of the time.
    measured = ["-m", "slipcover", "--branch", "--json", "--out", "coverage.json", "--source", part]
    workers = ["-n", str(PYTEST_WORKERS), "--dist", "worksteal"]
    step("PgBouncer", [PYTHON, "tools/fetch_pgbouncer.py"])
    with scratch_folder() as scratch:
        step("pytest", [PYTHON, *measured, "-m", "pytest", *workers, *NOT_ADAPTERS, "--draw"], TMPDIR=scratch)
        # In a process of their own: the frameworks take seconds to import, in each worker.
        step("adapters", [PYTHON, "-m", "pytest", *ADAPTER_TESTS], TMPDIR=scratch)
    decisions = ["--decisions"] if part == DECISIONS else []
    step("coverage gate", [PYTHON, "tools/coverage_gate.py", "coverage.json", *decisions])


@contextmanager
def scratch_folder() -> Generator[str, None, None]:
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=folder_in_memory()) as scratch:
        # The tests' server does not run as root, and has a folder below.
        Path(scratch).chmod(0o755)
        yield scratch


def folder_in_memory() -> str | None:
    """Return a folder in memory, or None without enough room. Tests of power loss simulate the disk themselves."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder with a unique name is made in it
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > SCRATCH_BYTES else None


def run_adapters() -> None:
    """Run every test of the adapters, and the frameworks' own tests with them, and write the table of the documents."""
    with scratch_folder() as scratch:
        step("adapters", [PYTHON, "-m", "pytest", *ADAPTER_TESTS, "--whole-suites"], TMPDIR=scratch)
    step("table", [PYTHON, "tools/adapter_table.py"])


def run_unit(arguments: list[str]) -> None:
    """Run pytest with your arguments, without coverage and without workers: the inner loop."""
    run([PYTHON, "-m", "pytest", *arguments])


# ---------------------------------------------------------------------------- environment


def sync(*, tools: bool) -> None:
    """Make `.venv` equal to `uv.lock`, with or without tools. Does nothing when it already has what is needed."""
    whole, bare = f"{fingerprint()} with tools", f"{fingerprint()} without tools"
    found = STAMP.read_text(encoding="utf-8") if PYTHON.exists() and STAMP.exists() else ""
    if found in ([whole] if tools else [whole, bare]):
        return
    started_s = time.monotonic()
    print("==> preparing .venv", flush=True)
    if not PYTHON.exists():
        create_venv()
    install_uv()
    parts = ["--all-extras", "--all-groups"] if tools else ["--extra", "postgres", "--no-default-groups"]
    run([uv(), "sync", "--frozen", *parts, "--quiet", "--no-python-downloads"])
    STAMP.write_text(whole if tools else bare, encoding="utf-8")
    print(f"    ready in {time.monotonic() - started_s:.1f} s", flush=True)


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in SYNC_INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def create_venv() -> None:
    # Some systems ship pip without ensurepip; install_uv then borrows the pip that runs this script.
    venv.create(VENV, clear=True, with_pip=has_module("ensurepip"), symlinks=os.name != "nt")


def install_uv() -> None:
    if uv().exists() and installed_uv_version() == UV_VERSION:
        return
    install = ["install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}"]
    if has_module("ensurepip"):
        run([PYTHON, "-m", "pip", *install])
    else:
        run([sys.executable, "-m", "pip", "--python", PYTHON, *install])


def installed_uv_version() -> str:
    answer = subprocess.run([uv(), "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[1]


def uv() -> Path:
    return SCRIPTS / ("uv.exe" if os.name == "nt" else "uv")


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# ---------------------------------------------------------------------------- commands


def step(title: str, command: Command, **variables: str) -> None:
    """Run a command under a heading and print its duration."""
    started_s, used_s = time.monotonic(), processor_s()
    print(f"\n==> {title}: {describe(command)}", flush=True)
    run(command, **variables)
    report(title, started_s, processor_s() - used_s)


@contextmanager
def beside(title: str, command: Command, **variables: str) -> Generator[None, None, None]:
    """Run a command in the background, and print its output at the end."""
    started_s = time.monotonic()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, cwd=ROOT, env=environment() | variables, stdout=said, stderr=said) as process,
    ):
        try:
            yield
        except BaseException:
            process.send_signal(signal.SIGINT)  # it has a server of its own to stop
            raise
        used_s = processor_s()
        code = process.wait()
        used_s = processor_s() - used_s
        said.seek(0)
        print(f"\n==> {title}: {describe(command)}", flush=True)
        sys.stdout.buffer.write(said.read())
        sys.stdout.buffer.flush()
        if code:
            raise subprocess.CalledProcessError(code, command)
        report(title, started_s, used_s)


def processor_s() -> float:
    """Return the processor time of commands that have ended, without servers that they left to themselves."""
    times = os.times()
    return times.children_user + times.children_system


def report(title: str, started_s: float, used_s: float) -> None:
    # Processor time hardly depends on other load, the duration does.
    print(f"    {title}: ok in {time.monotonic() - started_s:.1f} s, processor {used_s:.1f} s", flush=True)


def run(command: Command, **variables: str) -> None:
    subprocess.run(command, cwd=ROOT, env=environment() | variables, check=True)


def environment() -> dict[str, str]:
    dropped = {"PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return inherited | {
        # The tests start hundreds of interpreters; compiling the package takes each five times as long as loading it.
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
        "PATH": os.pathsep.join((str(SCRIPTS), os.environ.get("PATH", ""), str(FETCHED_POOLER))),
        # Silence the theme's advertisement of its successor.
        "NO_MKDOCS_2_WARNING": "1",
        "UV_PROJECT_ENVIRONMENT": str(VENV),
        "VIRTUAL_ENV": str(VENV),
    }


def describe(command: Command) -> str:
    """Return the command as typed inside the environment."""
    return shlex.join(str(word).removeprefix(f"{SCRIPTS}{os.sep}") for word in command)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what tells an older Python so
        sys.exit("Holdfast needs Python 3.11 or newer; this is " + sys.version.split()[0])
    sys.exit(main(sys.argv[1:]))
