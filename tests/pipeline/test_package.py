"""The package itself: what is said where Spark is not installed."""

from tests.support.command_lines import run_python

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
try:
    import everlog.pipeline
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_spark_the_import_tells_what_to_install() -> None:
    assert "pip install 'everlog[spark]'" in run_python(WITHOUT_SPARK).stdout
