"""Settings shared by all tests: the hypothesis profiles. Fixtures live next to the tests that use them.

`HYPOTHESIS_PROFILE=thorough` looks at many more examples than the default profile `ci`.
"""

import os

from hypothesis import HealthCheck, settings

# Deadlines and the too_slow check measure the machine, not everlog, and other work shares the machine.
# A failure prints the blob that reproduces it.
settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
