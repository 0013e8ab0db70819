"""Settings shared by all tests: hypothesis profiles, interrupts. Fixtures live next to their tests.

`HYPOTHESIS_PROFILE=thorough` looks at many more examples than the default profile `ci`, `quick` at fewer.
"""

import gc
import os
import signal

from hypothesis import HealthCheck, settings

from tests.support.effort import effort

# Modules and collected tests stay until the end. The garbage collector need not look through them again and
# again, and not at all while they are made, of which it would take half the time.
gc.disable()


def pytest_runtestloop() -> None:
    """Let the collector look at what tests make, and at nothing older."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter free everything at its end; some libraries complain about what is left."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        gc.unfreeze()


# Deadlines and the too_slow check measure the machine, not everlog, and other work shares the machine.
# A failure prints the blob that reproduces it.
settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=effort(100))
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell starts what it runs in the background with interrupts ignored; processes of tests would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
