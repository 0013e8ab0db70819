"""`spark-submit` with a packaged wheel: the jobs run on a cluster from what is in the wheel."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import deltalake
import msgspec
import pytest

from tests.support.spark_cluster import PATIENCE_S, ROOT, SPARK_HOME, running_cluster, write_simulated_queue

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree, with what has been compiled already."""
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = glob.glob(f"{folder}/everlog-*.whl")
    return Path(wheel)


def test_a_job_of_a_wheel_runs_on_a_cluster(tmp_path: Path) -> None:
    queue, lake, unpacked = tmp_path / "queue", tmp_path / "lake", tmp_path / "unpacked"
    messages = write_simulated_queue(str(queue), 500, 2)
    archive = shutil.copy(build_wheel(tmp_path / "dist"), tmp_path / "everlog.zip")
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(unpacked)
    with running_cluster(tmp_path / "cluster") as cluster:
        done = subprocess.run(
            [
                os.path.join(SPARK_HOME, "bin", "spark-submit"),
                *("--master", cluster.url, "--archives", f"{archive}#everlog-packed"),
                *("--conf", "spark.executorEnv.PYTHONPATH=everlog-packed"),
                *("--conf", "spark.driver.host=127.0.0.1"),
                str(unpacked / "everlog_submit.py"),
                *("replay", "--queue", str(queue), "--lake", str(lake), "--table", "tops", "--json"),
            ],
            cwd=tmp_path,
            env={**cluster.environment, "PYTHONPATH": str(unpacked), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode(done.stdout[done.stdout.index("{") :])
    table = deltalake.DeltaTable(str(lake / "tops"))
    assert 0 < report["rows"] == table.count() < messages
