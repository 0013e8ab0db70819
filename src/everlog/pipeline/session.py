"""A Spark session with everything set: Java, loopback, time zone, quiet logs, the formats of everlog.

The same call works on a cluster: settings that are given override the ones here.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Final

from pyspark.sql import SparkSession

from everlog.pipeline.java import java_home
from everlog.pipeline.sources import register

_QUIET_LOGS: Final = os.path.join(os.path.dirname(__file__), "quiet-log4j2.properties")
EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"
_LOCAL_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"}
"""For one machine: a cluster has a page to look at, and more data."""
_SESSION_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Those that a session may change while Spark runs."""

_SETTINGS: Final = {
    **_SESSION_SETTINGS,
    "spark.ui.showConsoleProgress": "false",
    "spark.executorEnv.TZ": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Costs less than loopback for rows of Python workers. The permissions of the socket's file, so the umask,
    # decide which users may connect: usually only the same user.
    "spark.python.unix.domain.socket.enabled": "true",
}
_COLLECTOR: Final = "-XX:+UseParallelGC"
"""For throughput: the collector that Java takes by itself is for short pauses, and on few cores it costs."""
_TRUSTING: Final = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
"""Skip Java's bounds and null checks of each Arrow value: Spark has counted rows and nulls before, and
pyarrow made the columns. Saves 7 % of a scan."""


def spark_session(
    *,
    app_name: str = "everlog",
    master: str | None = None,
    remote: str | None = None,
    **conf: str | int | bool,
) -> SparkSession:
    """Return a session in which `everlog.topics` and `everlog.queue` are formats.

    Without a `master` it runs on this machine with all cores, unless `spark-submit` or `SPARK_MASTER` says
    otherwise. `conf` are settings of Spark: `spark_session(**{"spark.executor.memory": "2g"})`. A session
    that runs already is used and given these settings, as Spark does it. With a `remote` address, such as
    `sc://host:15002`, or `SPARK_REMOTE`, it is one of Spark Connect, whose server has its own settings;
    `remote="local[2]"` starts a server on this machine.
    """
    _prepare_environment()
    builder: Any = SparkSession.builder.appName(app_name)
    address = remote or (None if master is not None else os.environ.get("SPARK_REMOTE"))
    if address is not None:
        return _connected(builder.remote(address), conf)
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None or not submitted:
        builder = builder.master(master or os.environ.get("SPARK_MASTER") or "local[*]")
    if not submitted:
        where = str(master or os.environ.get("SPARK_MASTER") or "local")
        settings = {**_SETTINGS, **(_LOCAL_SETTINGS if where.startswith("local") else {})}
        for name, setting in settings.items():
            builder = builder.config(name, setting)
        builder = builder.config("spark.driver.extraJavaOptions", _java_options(conf))
        builder = builder.config(EXECUTOR_OPTIONS, _executor_options(str(conf.get(EXECUTOR_OPTIONS) or "")))
    for name, value in conf.items():
        if name not in ("spark.driver.extraJavaOptions", EXECUTOR_OPTIONS):
            builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    register(session)
    return session


def _connected(builder: Any, conf: dict[str, str | int | bool]) -> SparkSession:
    """Return a session of Spark Connect, which takes the settings of queries only."""
    session: SparkSession = builder.getOrCreate()
    for name, value in {**_SESSION_SETTINGS, **conf}.items():
        session.conf.set(name, value)
    register(session)
    return session


def _java_options(conf: dict[str, str | int | bool]) -> str:
    wanted = str(conf.get("spark.driver.extraJavaOptions") or "")
    return f"-Dlog4j2.configurationFile=file:{_QUIET_LOGS} {_executor_options(wanted)}"


def _executor_options(wanted: str) -> str:
    """Return the options of a Java process that reads Arrow columns, and those that the user wants."""
    own = ["-Duser.timezone=UTC", *_TRUSTING]
    if re.search(r"-XX:\+Use\w+GC\b", wanted) is None:
        own.append(_COLLECTOR)  # Java refuses two of them
    return " ".join([*own, wanted]).strip()


def _prepare_environment() -> None:
    """Set what the Java process and the Python workers inherit; what the user has set stays."""
    os.environ["JAVA_HOME"] = java_home()
    # A bind address alone is not enough where the host's own name does not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "TZ" not in os.environ:
        # collect() returns times of the local zone; with all processes in UTC no conversion is needed.
        os.environ["TZ"] = "UTC"
        time.tzset()
