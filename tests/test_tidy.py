"""The source itself, checked as a test: sizes, dead modules, opening words, nothing local in tracked files.

Each check is a function from text to a list of complaints, proven on a bad sample before it meets the
repository.
"""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
SOURCE_KINDS = (".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h")
IGNORED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", ".hypothesis"}
# Imported by tests only, ours and those of users.
FOR_TESTS = ("everlog.fault_fs", "everlog.testing")
NATIVE = ROOT / "src/everlog/native"
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 800
MAX_NATIVE_LINES = 13_000
MAX_EXTENSIONS = 8

CYTHON_FUNCTION = re.compile(r"^(\s*)(?:async\s+)?(?:def|cdef|cpdef)\s+(?!class\b)[^=]*?(\w+)\s*\(")
CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from\s+([\w.]+)\s+c?import[ \t]+\(?([\w \t,]*)|c?import\s+([\w.]+))", re.MULTILINE
)
LOCAL_PATH = re.compile(r"(?<![\w.)}\]*$/-])/(?:home|root|work|Users)/\w")
# Ways to change or open a file that only `Fs` may use.
DISK_CALL = re.compile(
    r"open|(?:os|io)\.(?:open|fdopen|p?writev?|f(?:data)?sync|sync|f?truncate|posix_fallocate|copy_file_range"
    r"|sendfile|rename|replace|link|symlink|unlink|remove|mkdir|makedirs|rmdir)|.+\.write_(?:bytes|text)"
)
NATIVE_DISK_CALL = re.compile(
    r"(?<![\w.>])(?:c_)?(open|openat|fopen|write|writev|pwrite|pwritev|fwrite|fsync|fdatasync|syncfs|msync"
    r"|ftruncate|fallocate|posix_fallocate|rename|renameat2|unlink)\s*\("
)
CLASSIC_SPARK = re.compile(r"\b(?:sparkContext|_gateway|_jvm|_jdf|_jsparkSession)\b|\.rdd\b")
"""Attributes that a session or frame of Spark Connect does not have."""

# What is no file with a guarantee, and the one native function that `Fs` calls itself.
OUTSIDE_FS = {
    "src/everlog/queue/writer_lock.py": {"open"},  # /proc
    "src/everlog/queue/segment_builder.py": {"os.ftruncate"},  # a memory file
    "src/everlog/native/queue/mapping.pxi": {"msync"},
}
REGISTRY = re.compile(
    r"--(?:extra-)?index[-]url|--find[-]links|https?://[^\s\"'>]*(?:pypi|pythonhosted|artifactory|nexus|/simple)",
    re.IGNORECASE,
)
# Words that personify data or that only this project uses.
BANNED_WORDS = re.compile(
    r"\b(?:whoever|nobody|somebody|anybody|everybody|at ease|short way|long way|plain append|pass_on|has_news"
    r"|bring_up|set_aside|hand_over|tell_kept|little_curl|settle_worker|met by little|dearer)\b",
    re.IGNORECASE,
)
EMPTY_REFERENCE = re.compile(r'\s*"""See `[^`]*`\."""$')
PROSE_KINDS = (*SOURCE_KINDS, ".md")
# The list itself.
WORDS_EXEMPT = ("tests/test_tidy.py",)


# --- The files -------------------------------------------------------------------------------------------


def repository_files(root: Path) -> list[Path]:
    """All files that are or would be committed; without git, all but the ignored folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return sorted(walked_files(root))
    names = {name for name in listing.decode().split("\0") if name}
    return sorted(root / name for name in names if (root / name).is_file())


def walked_files(root: Path) -> Iterator[Path]:
    """Every file below root, except build output and caches."""
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        ignored = any(part in IGNORED_FOLDERS or part.endswith(("_cache", ".egg-info")) for part in parts)
        if path.is_file() and not ignored and path.suffix not in {".so", ".pyc", ".o"}:
            yield path


def source_files(*kinds: str, folders: Iterable[str] = SOURCE_FOLDERS) -> list[Path]:
    """The repository's source files of the given suffixes."""
    wanted = set(folders)
    return [
        path
        for path in repository_files(ROOT)
        if path.suffix in kinds and path.relative_to(ROOT).parts[0] in wanted
    ]


def native_extensions() -> dict[str, list[str]]:
    """The table EXTENSIONS of setup.py: module below everlog.native -> its C sources."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXTENSIONS":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no table EXTENSIONS")


# --- The checks ------------------------------------------------------------------------------------------


def long_functions(source: str) -> list[str]:
    """Python functions of more than MAX_FUNCTION_LINES lines, from `def` to the last line."""
    return [
        f"line {node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES} are allowed"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def long_cython_functions(source: str) -> list[str]:
    """The same for Cython, by indentation, since `ast` does not read it."""
    lines = source.splitlines()
    complaints = []
    for start, line in enumerate(lines):
        found = CYTHON_FUNCTION.match(line)
        if not found:
            continue
        last = start
        for number in range(start + 1, len(lines)):
            text = lines[number]
            if not text.strip():
                continue
            if len(text) - len(text.lstrip()) <= len(found[1]) and not text.lstrip().startswith(")"):
                break
            last = number
        if (length := last - start + 1) > MAX_FUNCTION_LINES:
            name, limit = found[2], MAX_FUNCTION_LINES
            complaints.append(f"line {start + 1}: {name} has {length} lines, at most {limit} are allowed")
    return complaints


def long_file(source: str) -> list[str]:
    """The file itself, if it has more than MAX_FILE_LINES lines."""
    length = len(source.splitlines())
    return [f"{length} lines, at most {MAX_FILE_LINES} are allowed"] if length > MAX_FILE_LINES else []


def missing_docstring(source: str) -> list[str]:
    """A Python module that does not start by saying what it is. An empty file has nothing to say."""
    # The first token says it; a tree of each module would take seconds.
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    first = next(token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))
    is_said = first.type == tokenize.STRING and bool(ast.literal_eval(first.string))
    return [] if is_said or first.type == tokenize.ENDMARKER else ["no module docstring"]


def missing_opening_comment(source: str) -> list[str]:
    """A Cython or C file that does not start by saying what it is; Cython directives may come first."""
    text = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    opened = bool(text) and text[0].startswith(('"""', "/*", "//"))
    return [] if opened else ["does not start with a docstring or comment"]


def local_traces(text: str) -> list[str]:
    """Paths of somebody's machine and addresses of package registries."""
    return [
        f"line {number}: {what}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in (("path of one machine", LOCAL_PATH), ("package registry", REGISTRY))
        if pattern.search(line)
    ]


def disk_access(source: str) -> list[str]:
    """Python calls that change or open files without `Fs`: `open`, those of `os`, and writes of a `Path`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [called for call in calls if DISK_CALL.fullmatch(called := ast.unparse(call.func))]


def native_disk_access(source: str) -> list[str]:
    """The same for C and Cython: calls of the system's functions; declarations and methods do not count."""
    lines = (
        line for line in source.splitlines() if not line.lstrip().startswith(("def ", "cdef ", "*", "#"))
    )
    return [name for line in lines for name in NATIVE_DISK_CALL.findall(line)]


def linked_twice(extensions: dict[str, list[str]]) -> list[str]:
    """C sources that are part of more than one extension."""
    linked = [source for sources in extensions.values() for source in sources]
    return sorted({source for source in linked if linked.count(source) > 1})


def banned_words(text: str) -> list[str]:
    """Lines with a word of BANNED_WORDS."""
    return [
        f"line {number}: {found[0]!r} is a banned word: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := BANNED_WORDS.search(line))
    ]


def empty_references(text: str) -> list[str]:
    """Docstrings that only name another one, and leave the reader to look it up."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"line {number}: {line.strip()}" for number, line in lines if EMPTY_REFERENCE.match(line)]


def dead_modules(modules: dict[str, str], entry_points: Iterable[str]) -> list[str]:
    """Modules that no entry point and no public package reaches, given module name -> source.

    Public packages (`everlog`, `everlog.<name>`) and `__main__` modules count as entry points. A package is
    known by the suffix `.__init__`; a Cython module by `.pyx` at the end of its name.
    """
    plain = {name.removesuffix(".__init__").removesuffix(".pyx"): name for name in modules}
    reached: set[str] = set()
    waiting = [name for name in plain if is_public_package(plain[name]) or name.endswith(".__main__")]
    waiting += list(entry_points)
    while waiting:
        name = waiting.pop()
        if name in reached or name not in plain:
            continue
        reached.add(name)
        waiting.append(name.rpartition(".")[0])
        waiting += imported_names(plain[name], modules[plain[name]])
    return sorted(set(plain) - reached)


def is_public_package(name: str) -> bool:
    """Whether a module name is the `__init__` of the top package or of a public package right below it."""
    parts = name.split(".")
    return parts[-1] == "__init__" and len(parts) <= 3 and not parts[-2].startswith("_")


def imported_names(name: str, source: str) -> Iterator[str]:
    """Everything a module imports, as absolute dotted names; `from a import b` gives `a` and `a.b`."""
    if name.endswith(".pyx"):
        for origin, names, plain in CYTHON_IMPORT.findall(source):
            yield origin or plain
            yield from (f"{origin}.{part.split()[0]}" for part in names.split(",") if part.strip())
        return
    package = name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


# --- The repository --------------------------------------------------------------------------------------


def complaints_about(paths: Iterable[Path], check: Callable[[str], list[str]]) -> list[str]:
    """Run one check over files; binary files have nothing to complain about."""
    found = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {complaint}" for complaint in check(text)]
    return found


def test_no_python_function_is_too_long() -> None:
    assert complaints_about(source_files(".py"), long_functions) == []


def test_no_cython_function_is_too_long() -> None:
    assert complaints_about(source_files(".pyx", ".pxi"), long_cython_functions) == []


def test_no_file_is_too_long() -> None:
    assert complaints_about(source_files(*SOURCE_KINDS), long_file) == []


def test_every_module_starts_with_a_docstring() -> None:
    assert complaints_about(source_files(".py"), missing_docstring) == []


def test_every_native_file_starts_by_saying_what_it_is() -> None:
    assert complaints_about(source_files(".pyx", ".pxd", ".c", ".h"), missing_opening_comment) == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert complaints_about(repository_files(ROOT), local_traces) == []


def test_no_disk_access_goes_around_fs() -> None:
    found = []
    for path in source_files(".py", ".pyx", ".pxi", ".c", ".h", folders=["src"]):
        name = str(path.relative_to(ROOT))
        if name.startswith(("src/everlog/topics/", "src/everlog/queue/", "src/everlog/native/")):
            check = disk_access if path.suffix == ".py" else native_disk_access
            calls = check(path.read_text(encoding="utf-8"))
            found += [f"{name}: {call}" for call in calls if call not in OUTSIDE_FS.get(name, ())]
    assert found == []


def test_the_pipeline_uses_nothing_that_only_a_classic_session_has() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in source_files(".py", folders=["src"])
        for word in CLASSIC_SPARK.findall(path.read_text(encoding="utf-8"))
        if path.is_relative_to(ROOT / "src/everlog/pipeline")
    }
    assert found == set()


@pytest.mark.parametrize(
    "bad", ["spark.sparkContext.x", "frame._jdf", "context._gateway", "s._jvm.java", "df.rdd"]
)
def test_what_only_a_classic_session_has_is_reported(bad: str) -> None:
    assert CLASSIC_SPARK.search(bad)


def test_no_file_uses_a_banned_word() -> None:
    files = [path for path in repository_files(ROOT) if path.suffix in PROSE_KINDS]
    exempt = {ROOT / name for name in WORDS_EXEMPT}
    assert complaints_about([path for path in files if path not in exempt], banned_words) == []


def test_every_docstring_says_something() -> None:
    assert complaints_about(source_files(".py"), empty_references) == []


def test_constraints_hold_versions_and_no_addresses() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []


def test_every_module_is_used() -> None:
    modules = {}
    for path in source_files(".py", ".pyx", folders=["src"]):
        if path.parent.name == "quickstart_files":
            continue  # programs that `everlog quickstart` copies
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        modules[name + (".pyx" if path.suffix == ".pyx" else "")] = path.read_text(encoding="utf-8")
    assert modules
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    entry_points = [target.partition(":")[0] for target in settings["project"]["scripts"].values()]
    found_by_spark = settings["tool"]["setuptools"]["py-modules"]
    assert dead_modules(modules, [*entry_points, *found_by_spark, *FOR_TESTS]) == []


def test_every_native_source_is_built() -> None:
    built = {f"{name.replace('.', '/')}.pyx" for name in native_extensions()}
    built |= {source for sources in native_extensions().values() for source in sources}
    native = source_files(".pyx", ".c", folders=["src"])
    assert {str(path.relative_to(NATIVE)) for path in native} == built


def test_native_code_is_small() -> None:
    native = [path for path in source_files(*SOURCE_KINDS, folders=["src"]) if path.is_relative_to(NATIVE)]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in native)
    assert lines <= MAX_NATIVE_LINES


def test_there_are_few_extensions_and_no_c_file_is_linked_twice() -> None:
    extensions = native_extensions()
    assert len(extensions) <= MAX_EXTENSIONS
    assert linked_twice(extensions) == []


def test_every_native_folder_says_what_it_is() -> None:
    folders = {path.parent for path in source_files(".pyx", folders=["src"])}
    assert [folder.name for folder in sorted(folders) if not (folder / "README.md").is_file()] == []


# --- The checks can fail ---------------------------------------------------------------------------------


def function_of(lines: int, opening: str = "def sample():") -> str:
    """A function of exactly so many lines, blank ones inside included."""
    body = ["", "    pass"] * lines
    return "\n".join([opening, *body[: lines - 2], "    pass"])


@pytest.mark.parametrize("opening", ["def sample():", "async def sample():"])
def test_a_function_one_line_over_the_limit_is_reported(opening: str) -> None:
    assert long_functions(function_of(MAX_FUNCTION_LINES, opening)) == []
    assert "sample has 71 lines" in long_functions(function_of(MAX_FUNCTION_LINES + 1, opening))[0]


@pytest.mark.parametrize("opening", ["def sample(x):", "cdef int sample(int x) nogil:", "cpdef sample(x):"])
def test_a_cython_function_one_line_over_the_limit_is_reported(opening: str) -> None:
    after = "\n\n\ndef next_one(\n    x,\n):\n    pass\n"
    assert long_cython_functions(function_of(MAX_FUNCTION_LINES, opening) + after) == []
    found = long_cython_functions(function_of(MAX_FUNCTION_LINES + 1, opening) + after)
    assert len(found) == 1
    assert "sample has 71 lines" in found[0]


def test_a_file_one_line_over_the_limit_is_reported() -> None:
    assert long_file("\n" * MAX_FILE_LINES) == []
    assert long_file("\n" * (MAX_FILE_LINES + 1)) == ["801 lines, at most 800 are allowed"]


def test_a_module_without_a_docstring_is_reported() -> None:
    assert missing_docstring("") == []
    assert missing_docstring('"""What it owns."""\nx = 1\n') == []
    assert missing_docstring("x = 1\n") == ["no module docstring"]


def test_a_docstring_that_only_names_another_one_is_reported() -> None:
    assert empty_references('    """Read a file; see `Fs.open`."""') == []
    assert empty_references('    """See `Fs.open`; it may be short."""') == []
    assert empty_references('    """See ' + '`Fs.open`."""') == ['line 1: """See `Fs.open`."""']


@pytest.mark.parametrize("good", ['# cython: x=1\n"""Owns."""\n', "/* Owns. */\n", "// Owns.\n"])
def test_a_native_file_that_starts_with_words_passes(good: str) -> None:
    assert missing_opening_comment(good) == []


@pytest.mark.parametrize("bad", ["", "#pragma once\nint x;\n/* late */\n", "cimport x\n"])
def test_a_native_file_that_starts_without_words_is_reported(bad: str) -> None:
    assert missing_opening_comment(bad) != []


# The bad samples are put together here, so that this file passes its own check.
@pytest.mark.parametrize(
    "bad",
    [
        "see /" + "home/someone/notes",
        '"/' + 'work/tree"',
        "(/" + "root/x)",
        "/" + "Users/someone",
        "--index" + "-url x",
        "pip install --find" + "-links x",
        "https://" + "pypi.example/x",
        "https://mirror.example" + "/simple/",
    ],
)
def test_a_local_path_or_registry_is_reported(bad: str) -> None:
    assert local_traces(f"fine\n{bad}\n")[0].startswith("line 2: ")


@pytest.mark.parametrize("bad", ["# Whoever asks", "if nobody waits:", "the short way", "row.pass_on(x)"])
def test_a_banned_word_is_reported(bad: str) -> None:
    assert banned_words(f"fine\n{bad}\n")[0].startswith("line 2: ")


def test_words_that_only_contain_a_banned_one_pass() -> None:
    assert banned_words("everybody_else = 1\nthe shortway house\n") == []


@pytest.mark.parametrize(
    "good", ["a/work/b", "{base}/root/x", "/dev/shm/x", "https://www.apache.org/licenses/"]
)
def test_relative_paths_and_other_addresses_pass(good: str) -> None:
    assert local_traces(good) == []


@pytest.mark.parametrize(
    "bad",
    [
        "os.pwrite(fd, b'', 0)",
        "os.fsync(fd)",
        "fd = os.open(path, 0)",
        "with open(path) as file: pass",
        "io.open(path)",
        "os.replace(old, new)",
        "Path(name).write_bytes(b'')",
    ],
)
def test_disk_access_around_fs_is_reported(bad: str) -> None:
    assert len(disk_access(bad)) == 1


@pytest.mark.parametrize(
    "good", ["fs.open(path, 0)", "self._fs.fsync(fd)", "engine.open()", "log.write()", "os.path.exists(path)"]
)
def test_disk_access_through_fs_passes(good: str) -> None:
    assert disk_access(good) == []


def test_native_disk_access_is_reported() -> None:
    assert native_disk_access("    written = pwrite(fd, base, length, offset)") == ["pwrite"]
    assert native_disk_access("    if (fsync(fd) != 0) return -1;") == ["fsync"]
    assert native_disk_access("    result = c_msync(base, length, flags)") == ["msync"]
    assert native_disk_access("    def write(self, data):\n        self.transport.write(data)") == []
    assert native_disk_access("    loop->write(data); rewrite(data);") == []


def test_a_module_that_nothing_reaches_is_reported() -> None:
    modules = {
        "pack.__init__": "",
        "pack.part.__init__": "from pack.part import used\nfrom .sibling import thing",
        "pack.part.used": "from ..low import x\nimport pack.deep.leaf",
        "pack.part.sibling": "",
        "pack.low": "",
        "pack.deep.__init__": "",
        "pack.deep.leaf": "from pack.native import core",
        "pack.native.core.pyx": "from pack.native.helper cimport x\ncimport pack.native.other",
        "pack.native.helper": "",
        "pack.native.other": "",
        "pack.command": "",
        "pack.inner.__main__": "",
        "pack.dead": "import pack.also_dead",
        "pack.also_dead": "import pack.dead",
    }
    assert dead_modules(modules, ["pack.command"]) == ["pack.also_dead", "pack.dead"]
    assert dead_modules(modules, []) == ["pack.also_dead", "pack.command", "pack.dead"]


def test_a_c_file_in_two_extensions_is_reported() -> None:
    assert linked_twice({"one": ["a.c", "b.c"], "other": ["c.c"]}) == []
    assert linked_twice({"one": ["a.c", "b.c"], "other": ["b.c"]}) == ["b.c"]


def test_files_are_found_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src/a.py", "build/b.py", ".venv/c.py", "src/x.egg-info/d", "src/a.so", ".mypy_cache/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert repository_files(tmp_path) == [tmp_path / "src/a.py"]


def test_deleted_files_that_git_lists_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept.py").touch()

    def listing(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0, stdout=b"kept.py\0deleted.py\0")

    monkeypatch.setattr(subprocess, "run", listing)
    assert repository_files(tmp_path) == [tmp_path / "kept.py"]
