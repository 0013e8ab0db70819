"""Jobs of benchmarks start as children of tests do: what that changes shows in times alone."""

from collections.abc import Iterator

import pytest

from benchmarks.queue import processes

# Lets the process that jobs are copies of import what they need.
from tests.support import processes as test_processes


@pytest.fixture(scope="session", autouse=True)
def forked_jobs() -> Iterator[None]:
    """Copy a process that has imported everlog for each job, which costs a tenth of a new interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "START_METHOD", test_processes.START_METHOD)
        yield
