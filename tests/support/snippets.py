"""Pages of documentation as programs: finds the code blocks of a page and runs them from top to bottom.

Owns what the blocks mean:

* `python`: executed, all blocks of a page in one namespace. An expression followed by `# -> text` must
  have that repr. What a block prints must be shown by a `text` block right below it.
* `console`: each `$ command` is run by a shell; the lines below it must be what it prints.
* anything else (`sh`, `text` elsewhere) is for the eye only.

In expected output `...` stands for anything. All blocks of a page share one working directory. `python -m
tests.support.snippets PAGE` runs one in the working directory of its own process.
"""

import ast
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RESULT = re.compile(r"#\s*->\s*(.+)$")
_COMMAND_TIMEOUT_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where its first line stands in the page."""

    page: Path
    language: str
    line: int
    text: str

    def complain(self, problem: str) -> AssertionError:
        """An error that says which block is meant."""
        return AssertionError(f"{self.page.name}, line {self.line}: {problem}\n{self.text}")


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    content = page.read_text(encoding="utf-8")
    return [
        Block(page, found[1], content.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _FENCE.finditer(content)
    ]


def run_page(page: Path, directory: Path) -> int:
    """Run all blocks of a page in `directory`, which must be the working directory; return how many."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks = blocks_of(page)
    count = 0
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            shown = following.text if following is not None and following.language == "text" else ""
            _run_python(block, namespace, shown)
        elif block.language == "console":
            _run_console(block, directory)
        else:
            continue
        count += 1
    return count


def run_page_alone(page: Path, directory: Path, **variables: str) -> int:
    """Run a page in a process of its own, as a reader would: its first Spark session is the page's."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, page],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def _run_python(block: Block, namespace: dict[str, Any], shown: str) -> None:
    # Blank lines above, so that a traceback names the line of the page.
    tree = ast.parse("\n" * (block.line - 1) + block.text, str(block.page))
    results = dict(_results(block))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in tree.body:
            wanted = results.pop(statement.end_lineno or 0, None)
            if wanted is not None and isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), str(block.page), "eval"), namespace)
                if not _matches(wanted, repr(value)):
                    raise block.complain(f"line {statement.end_lineno} gives {value!r}, not {wanted}")
            else:
                exec(compile(ast.Module([statement], []), str(block.page), "exec"), namespace)
                if wanted is not None:
                    raise block.complain(f"line {statement.end_lineno} has no value to compare with {wanted}")
    if results:
        raise block.complain(f"no statement ends on the lines {sorted(results)}, where results are promised")
    if not _matches(shown, printed.getvalue()):
        raise block.complain(f"prints:\n{printed.getvalue()}\nbut the page shows:\n{shown}")


def _results(block: Block) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        found = _RESULT.search(line)
        if found:
            yield number, found[1].strip()


def _run_console(block: Block, directory: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, wanted = entry.partition("\n")
        result = subprocess.run(
            command,
            shell=True,
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": "110"},
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0:
            raise block.complain(f"`{command}` ends with {result.returncode}: {result.stderr}")
        if not _matches(wanted, result.stdout):
            raise block.complain(f"`{command}` prints:\n{result.stdout}\nbut the page shows:\n{wanted}")


def _matches(wanted: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted.strip() + "\n", printed.strip() + "\n", flags)


if __name__ == "__main__":
    print(run_page(Path(sys.argv[1]), Path.cwd()))
