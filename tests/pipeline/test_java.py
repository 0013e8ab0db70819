"""Which Java Spark gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from everlog.errors import Unsupported
from everlog.pipeline import java


def fake_java(home: Path, version: str) -> Path:
    """Make a `bin/java` that says it is of this version and repeats its arguments."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit 0\necho "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_292", 8), ("25", 25)])
def test_the_major_version_is_read_from_what_java_says(tmp_path: Path, text: str, major: int) -> None:
    assert java.version_of(str(fake_java(tmp_path, text))) == major


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.version_of(str(tmp_path / "bin" / "java")) is None


def test_a_java_home_that_is_new_enough_is_used(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(no_java / "own", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(no_java / "own"))
    assert java.java_home() == str(no_java / "own")


def test_an_old_java_home_is_passed_over(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(no_java / "old", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(no_java / "old"))
    monkeypatch.setattr(java, "bundled_java", lambda: str(fake_java(no_java / "bundled", "25")))
    assert java.java_home() == str(no_java / "cache" / "everlog" / "java")


def test_without_any_java_the_error_says_what_to_install(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    with pytest.raises(Unsupported, match=r"Java 17 or newer.*everlog\[spark\]"):
        java.java_home()


def test_the_launcher_drops_the_one_argument_that_is_refused_and_keeps_the_others(tmp_path: Path) -> None:
    home = java.launcher_home(str(fake_java(tmp_path / "real", "25")), str(tmp_path))
    given = ["-Xmx1g", java.REFUSED_ARGUMENT, "a b", "--add-modules=other"]
    said = subprocess.check_output([os.path.join(home, "bin", "java"), *given], text=True)
    assert said == "-Xmx1g a b --add-modules=other\n"


def test_the_launcher_is_made_once_and_again_when_java_moves(tmp_path: Path) -> None:
    first = Path(java.launcher_home("/nowhere/java", str(tmp_path)), "bin", "java")
    made = first.stat().st_mtime_ns
    java.launcher_home("/nowhere/java", str(tmp_path))
    assert first.stat().st_mtime_ns == made
    java.launcher_home("/elsewhere/java", str(tmp_path))
    assert "/elsewhere/java" in first.read_text()


def test_the_java_from_pypi_runs_without_one_of_the_machine(no_java: Path) -> None:
    home = java.java_home()
    assert (java.version_of(os.path.join(home, "bin", "java")) or 0) >= java.OLDEST_JAVA
