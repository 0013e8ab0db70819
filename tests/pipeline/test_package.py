"""The package without Spark: the error names what to install."""

from tests.support.command_lines import run_python

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
try:
    import everlog.pipeline
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_spark_the_import_error_names_the_extra() -> None:
    assert "pip install 'everlog[spark]'" in run_python(WITHOUT_SPARK).stdout
