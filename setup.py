"""Builds the native extensions; everything else about the package is in pyproject.toml."""

import copy
import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/everlog/native")
GENERATED = Path("build/cython")
PROCESSORS = os.cpu_count() or 1

COMPILE_FLAGS = [
    "-std=c11",
    "-O3",
    "-fno-plt",
    # The core and its shims are one program; only the module's entry point is visible outside.
    "-flto",
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

# Module name -> its Cython source and the plain C sources linked with it, all under NATIVE.
EXTENSIONS = {
    "everlog.native.append_answer": ("append_answer.pyx", []),
    "everlog.native.book_output": ("book_output.pyx", ["book_events.c"]),
    "everlog.native.l2_book": ("l2_book.pyx", ["l2_book.c", "book_ladder.c", "book_events.c"]),
    "everlog.native.l3_book": (
        "l3_book.pyx",
        ["l3_book.c", "l3_state.c", "l3_orders.c", "book_ladder.c", "book_events.c"],
    ),
    "everlog.native.commits": ("commits.pyx", []),
    "everlog.native.csv_rows": ("csv_rows.pyx", ["csv_rows.c"]),
    "everlog.native.event_packing": ("event_packing.pyx", ["event_packing.c"]),
    "everlog.native.forwarding": ("forwarding.pyx", ["log_index.c", "tag_index.c", "render.c", "frames.c"]),
    "everlog.native.frame_columns": ("frame_columns.pyx", ["frame_columns.c", "page_scan.c", "frames.c"]),
    "everlog.native.frames": ("frames.pyx", ["frames.c"]),
    "everlog.native.guard": ("guard.pyx", ["ring_core.c", "ring_wait.c", "crc32.c"]),
    "everlog.native.jobs": ("jobs.pyx", ["log_index.c", "tag_index.c", "render.c", "frames.c"]),
    "everlog.native.http_request": ("http_request.pyx", []),
    "everlog.native.live_readers": ("live_readers.pyx", []),
    "everlog.native.log_replay": ("log_replay.pyx", ["log_index.c", "tag_index.c", "frames.c"]),
    "everlog.native.market_split": ("market_split.pyx", ["market_split.c", "book_events.c"]),
    "everlog.native.mapping": ("mapping.pyx", ["ring_core.c", "ring_wait.c", "crc32.c"]),
    "everlog.native.order_feed": ("order_feed.pyx", ["market_split.c", "book_events.c"]),
    "everlog.native.outlet": ("outlet.pyx", []),
    "everlog.native.ready_set": ("ready_set.pyx", []),
    "everlog.native.record_batch": ("record_batch.pyx", ["record_fields.c", "record_scan.c", "frames.c"]),
    "everlog.native.ring_reader": ("ring_reader.pyx", ["ring_core.c", "ring_wait.c", "crc32.c"]),
    "everlog.native.ring_writer": ("ring_writer.pyx", ["ring_core.c", "ring_wait.c", "crc32.c"]),
    "everlog.native.topic_core": ("topic_core.pyx", []),
    "everlog.native.topic_log": (
        "topic_log.pyx",
        ["log_append.c", "log_index.c", "tag_index.c", "render.c", "frames.c"],
    ),
}


def native_extensions() -> list[Extension]:
    """Return one setuptools extension per row of EXTENSIONS."""
    headers = sorted(str(header) for header in NATIVE.glob("*.h"))
    rows = [
        Extension(
            name,
            sources=[str(NATIVE / cython_source)],
            depends=headers,
            include_dirs=[str(NATIVE)],
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=["-flto", "-O3"],
        )
        for name, (cython_source, _) in EXTENSIONS.items()
    ]
    extensions: list[Extension] = cythonize(
        rows, build_dir=str(GENERATED), language_level=3, nthreads=PROCESSORS
    )
    # Added after cythonize, which would otherwise compile an aging copy of them in its build folder.
    for extension in extensions:
        extension.sources += [str(NATIVE / source) for source in EXTENSIONS[extension.name][1]]
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
        build_ext.build_extension(builder, ext)


if __name__ == "__main__":  # the workers of cythonize import this file
    setup(ext_modules=native_extensions(), cmdclass={"build_ext": BuildSideBySide})
