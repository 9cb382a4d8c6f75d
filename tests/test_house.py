"""The house rules that can be checked by program hold for every file of this repository."""

import ast
import os
import re
import site
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.backends.sqlite.schema_setup import table_names as sqlite_tables
from holdfast.statements import parse_statements
from holdfast.table_catalog import TABLES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
STATEMENT_CALLS = frozenset({"execute", "executemany", "executescript", "fetch", "fetchrow", "fetchval", "prepare"})

NAMING_CALLS = frozenset(
    {"all", "control", "one", "run", "run_many", "call_function"}
    | {
        "_all",
        "_batches",
        "_locked",
        "_locking",
        "_number",
        "_one",
        "_run",
        "_store",
        "_store_all",
        "_values",
    }
)
"""Calls of the backends that are given a statement's name."""

MODULES = sorted(PACKAGE.rglob("*.py"))
STATEMENT_FOLDERS = sorted((PACKAGE / "backends").glob("*/sql"))
BACKEND_MODULES = sorted((PACKAGE / "backends").rglob("*.py"))
QUIET_MODULES = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in {"cli", "cli.py"}]
TEXT_SUFFIXES = frozenset({".py", ".pyi", ".sql", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".sh", ".cfg"})
TEXT_FILES = sorted(
    path
    for folder in ("src", "tests", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix in TEXT_SUFFIXES
)

# Split, so that this file does not contain the text that it looks for.
PARENT_SHARED = re.escape("../" + "shared")
MACHINE_FOLDER = r"(?<![\w.~})*-])/(?:" + "|".join(["work", "root"]) + r")(?![\w-])"
MACHINE_PATH = re.compile(f"{PARENT_SHARED}|{MACHINE_FOLDER}")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def faults(paths: Iterable[Path], check: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """Return the files with faults, and the faults of each."""
    found = {name_of(path): list(check(path)) for path in paths}
    return {name: each for name, each in found.items() if each}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {lines} lines"


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def is_built_string(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr():
            return True
        case ast.BinOp(op=ast.Mod() | ast.Add()):
            return True
        case ast.Call(func=ast.Attribute(attr="format" | "join" | "format_map")):
            return True
        case _:
            return False


def built_statements(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in STATEMENT_CALLS:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(is_built_string(argument) for argument in arguments):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def names_in(expression: ast.AST) -> Iterator[str]:
    """Yield the statement names that an expression may stand for; `*` stands for the name of a table."""
    match expression:
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
        case ast.Constant(value=str(text)):
            # A trailing underscore begins names that are looked up among all. A plus separates a name from its parts.
            yield text + "*" if text.endswith("_") else text.partition("+")[0]
        case ast.IfExp(body=one, orelse=other):
            yield from names_in(one)
            yield from names_in(other)
        case _:
            pass


def run_names(tree: ast.AST) -> Iterator[str]:
    """Return the names that are passed to calls which run a statement, and to the table of all statements."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=arguments) if called_name(node) in NAMING_CALLS:
                for argument in arguments:
                    yield from names_in(argument)
            case ast.Subscript(value=ast.Attribute(attr="texts" | "_texts") | ast.Name(id="texts"), slice=name):
                yield from names_in(name)
            case _:
                pass


def with_tables(names: Iterator[str]) -> set[str]:
    """Return the names, each with a table's name in it once for every table."""
    tables = {*sqlite_tables(), *(table for table, _ in TABLES.values())}
    return {name.replace("*", table) for name in names for table in tables}


def unnamed_statements(stored: set[str], trees: list[ast.Module]) -> set[str]:
    """Return the statements whose name is nowhere in the code."""
    return stored - with_tables(name for tree in trees for node in ast.walk(tree) for name in names_in(node))


def missing_statements(stored: set[str], trees: list[ast.Module]) -> set[str]:
    """Return the names that no file holds; of those with a table's name in them, at least one must be held."""
    names = {name for tree in trees for name in run_names(tree)}
    return {name for name in names if stored.isdisjoint(with_tables(iter([name])))}


def prints(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: {ast.unparse(node)}"


def machine_paths(text: str) -> list[str]:
    return [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]


# ---------------------------------------------------------------------------- the files


def test_the_checks_below_look_at_real_files() -> None:
    assert PACKAGE / "__init__.py" in MODULES
    assert PACKAGE / "__init__.py" in QUIET_MODULES
    assert BACKEND_MODULES
    assert len(STATEMENT_FOLDERS) >= 2
    assert Path(__file__).resolve() in TEXT_FILES


def test_imports_point_in_the_agreed_direction() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    result = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout), result.stdout


def test_a_module_states_its_law_in_a_docstring() -> None:
    assert [name_of(path) for path in MODULES if not (ast.get_docstring(parse(path)) or "").strip()] == []


def test_a_module_is_at_most_500_lines_long() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_a_function_is_at_most_70_lines_long() -> None:
    assert faults(MODULES, lambda path: long_functions(parse(path))) == {}


def test_a_backend_never_builds_a_statement_from_strings() -> None:
    assert faults(BACKEND_MODULES, lambda path: built_statements(parse(path))) == {}


@pytest.mark.parametrize("folder", STATEMENT_FOLDERS, ids=name_of)
def test_every_statement_is_run_and_every_statement_that_is_run_exists(folder: Path) -> None:
    stored = {
        name
        for file in folder.glob("*.sql")
        for name, _ in parse_statements(file.read_text(encoding="utf-8"), origin=file.name)
    }
    trees = [parse(path) for path in sorted(folder.parent.rglob("*.py"))]
    assert unnamed_statements(stored, trees) == set()
    assert missing_statements(stored, trees) == set()


def test_the_library_prints_nothing_outside_its_command_line() -> None:
    assert faults(QUIET_MODULES, lambda path: prints(parse(path))) == {}


def test_no_file_names_a_path_of_one_particular_machine() -> None:
    assert faults(TEXT_FILES, lambda path: machine_paths(path.read_text(encoding="utf-8"))) == {}


UNLOADED = {
    *("apsw", "asyncpg", "jsonschema_rs", "cronsim", "opentelemetry", "holdfast.backends"),
    *("asyncio", "pathlib", "secrets", "random", "ssl", "urllib.parse"),
}
"""Modules that take long to load, and that not every user of the public names needs."""


def test_the_public_names_load_nothing_that_only_some_calls_need() -> None:
    program = "import sys, holdfast; assert holdfast.open; print(*sorted(sys.modules), sep='\\n')"
    # Without the site: an editable installation loads modules of its own.
    path = {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *site.getsitepackages()])}
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, env=os.environ | path
    )
    loaded = set(result.stdout.split())
    assert "holdfast._api" in loaded
    assert loaded & UNLOADED == set()


# ---------------------------------------------------------------------------- the checks themselves


@pytest.mark.parametrize(
    "source",
    [
        "db.execute(f'SELECT {x}')",
        "db.execute('SELECT %s' % x)",
        "db.execute('SELECT ' + x)",
        "db.executemany('SELECT {}'.format(x), rows)",
        "await db.fetchrow(query=f'SELECT {x}')",
        "execute(' '.join(words))",
    ],
)
def test_a_built_statement_is_noticed(source: str) -> None:
    assert len(list(built_statements(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["db.execute(FIND, (x % 2, f'{y}'))", "db.execute('SELECT 1')", "log(f'{x}')"])
def test_a_bound_value_is_not_mistaken_for_a_built_statement(source: str) -> None:
    assert list(built_statements(ast.parse(source))) == []


@pytest.mark.parametrize(
    "source",
    [
        "await self._runner.all('walk_nodes', key)",
        "self._one(NodeRow, 'walk_nodes' if all else 'find_node', (key,))",
        "name = 'walk_nodes'",
        "self._values(f'walk_{table_of(kind)}')",
        "WALK = 'walk_'",
        "texts['walk_nodes']",
    ],
)
def test_a_statement_that_is_named_is_not_mistaken_for_an_unused_one(source: str) -> None:
    assert unnamed_statements({"walk_nodes"}, [ast.parse(source)]) == set()


def test_a_statement_that_is_never_named_is_noticed() -> None:
    tree = ast.parse("self._run('find_node')\nself._values(f'walk_{table}')")
    assert unnamed_statements({"find_node", "walk_nodes", "drop_node", "walk_gone"}, [tree]) == {
        "drop_node",
        "walk_gone",
    }


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("self._run('drop_node')", {"drop_node"}),
        ("self._one(NodeRow, 'drop_node' if writes else 'find_node', (key,))", {"drop_node"}),
        ("self._values(f'drop_{table}')", {"drop_*"}),
        ("self._values(f'walk_{table}')", set()),
        ("texts['drop_node']", {"drop_node"}),
        ("self._run('find_node')", set()),
        ("Corrupt('drop_node')", set()),
    ],
)
def test_a_statement_that_no_file_holds_is_noticed(source: str, missing: set[str]) -> None:
    assert missing_statements({"find_node", "walk_nodes"}, [ast.parse(source)]) == missing


@pytest.mark.parametrize(("body_lines", "found"), [(FUNCTION_LINES_MAX - 1, 0), (FUNCTION_LINES_MAX, 1)])
def test_a_function_is_too_long_from_line_71_on(body_lines: int, found: int) -> None:
    source = "class C:\n    async def f(self):\n" + "        pass\n" * body_lines
    assert len(list(long_functions(ast.parse(source)))) == found


def test_a_print_is_noticed() -> None:
    assert list(prints(ast.parse("if x:\n    print(x)"))) == ["line 2: print(x)"]


@pytest.mark.parametrize("prefix", ["", "'", "sqlite:///", "see `", "("])
@pytest.mark.parametrize("folder", ["work", "root"])
def test_a_machine_path_is_noticed(prefix: str, folder: str) -> None:
    assert machine_paths(f"{prefix}/{folder}/state.db")
    assert machine_paths(f"{prefix}../{'shared'}/notes.md")


@pytest.mark.parametrize("text", ["holdfast/work/queue.py", "./work/x", "/workers/1", "{tmp}/work", "~/root"])
def test_an_ordinary_path_is_not_mistaken_for_a_machine_path(text: str) -> None:
    assert machine_paths(text) == []
