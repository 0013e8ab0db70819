"""Builds the native extensions; everything else about the package is in pyproject.toml."""

import copy
import os
import time
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/everlog/native")
GENERATED = Path("build/cython")
PROCESSORS = os.cpu_count() or 1

COMPILE_FLAGS = [
    "-std=c11",
    "-O2",
    # Python's own flags ask for debug information, which makes the wheel four times as large.
    "-g0",
    "-fno-plt",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # The C that Cython generates leaves parameters and helpers unused and mixes signedness.
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-missing-field-initializers",
    "-Wno-sign-compare",
    "-Wno-cast-function-type",
]

# Reading a message is faster by a tenth if `ring_step` is inlined across files. The others gain nothing from
# it, and it makes their build a third longer.
WHOLE_PROGRAM = {"queue.ring": ["-flto", "-O2"]}

# Set by `make sanitize`. An undefined operation ends the process, as an invalid access does.
IS_SANITIZED = os.environ.get("EVERLOG_SANITIZE") == "1"
SANITIZE_FLAGS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-O1",
    "-g1",
]

# Module name below everlog.native -> the plain C sources linked with it, below NATIVE.
EXTENSIONS = {
    "columns.frame_columns": [],
    "market.books": [],
    "market.events": [],
    "queue.ring": ["queue/crc32.c", "queue/ring_core.c", "queue/ring_wait.c"],
    "topics.log": [
        "topics/frames.c",
        "topics/log_index.c",
        "topics/render.c",
        "topics/tag_index.c",
    ],
    "topics.socket_writer": [],
}


# Folder -> the other folder whose headers it includes.
INCLUDED = {"columns": "topics"}


def headers_of(name: str) -> list[str]:
    """Return the headers whose change makes a new build of the extension necessary."""
    folder = name.rpartition(".")[0]
    folders = {NATIVE / folder, NATIVE / INCLUDED.get(folder, folder)}
    return sorted(str(path) for each in folders for kind in ("h", "pxi") for path in each.glob(f"*.{kind}"))


def flags_of(name: str) -> list[str]:
    """Return the flags with which the extension is both compiled and linked."""
    return SANITIZE_FLAGS if IS_SANITIZED else WHOLE_PROGRAM.get(name, [])


def native_extensions() -> list[Extension]:
    """Return one setuptools extension per row of EXTENSIONS."""
    rows = [
        Extension(
            f"everlog.native.{name}",
            sources=[str(NATIVE / f"{name.replace('.', '/')}.pyx")],
            depends=headers_of(name),
            include_dirs=[str(NATIVE)],
            extra_compile_args=COMPILE_FLAGS + flags_of(name),
            extra_link_args=flags_of(name),
        )
        for name in EXTENSIONS
    ]
    extensions: list[Extension] = cythonize(
        rows, build_dir=str(GENERATED), language_level=3, nthreads=PROCESSORS
    )
    # Added after cythonize, which would otherwise compile an aging copy of them in its build folder.
    for extension in extensions:
        sources = EXTENSIONS[extension.name.removeprefix("everlog.native.")]
        extension.sources += [str(NATIVE / source) for source in sources]
    return extensions


class BuildSideBySide(build_ext):
    """Builds as many extensions at a time as there are processors."""

    def finalize_options(self) -> None:
        """Use all processors unless the caller said otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or PROCESSORS

    def build_extension(self, ext: Extension) -> None:
        """Build one with objects of its own: several extensions compile the same C sources."""
        builder = copy.copy(self)
        builder.build_temp = str(Path(self.build_temp) / ext.name)
        started_s = time.monotonic()
        # `make setup` shows these lines as they come; pip shows them with -v.
        print(f"compiling {ext.name}", flush=True)
        build_ext.build_extension(builder, ext)
        print(f"compiled {ext.name} in {time.monotonic() - started_s:.0f} s", flush=True)


if __name__ == "__main__":  # the workers of cythonize import this file
    setup(ext_modules=native_extensions(), cmdclass={"build_ext": BuildSideBySide})
