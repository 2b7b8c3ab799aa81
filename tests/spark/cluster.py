"""A standalone Spark on this host: a master and workers of the package that PySpark is, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.system.java import JAVA

_PATIENCE_S: Final = 600.0
_PAUSE_S: Final = 0.1
_AT: Final = re.compile(r"Starting Spark master at (spark://\S+)")


class Cluster:
    """Workers of one core each, two at first; all of it ends with the block. Their logs are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._begun = 0
        self.url = ""

    def __enter__(self) -> Cluster:
        self._folder.mkdir()
        try:
            self._master = self._begin("master", "master.Master", "--port", "0")
            self._until("the master begins", lambda: bool(_AT.search(self._log("master"))))
            self.url = _AT.findall(self._log("master"))[0]
            self._add()
            self._add()
            self._until_known()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self.workers, *([self._master] if self._master else [])]:
            self.kill(process)

    def replace(self, number: int) -> None:
        """Begin a worker instead of one that was killed."""
        self.workers.pop(number)
        self._add()
        self._until_known()

    def _add(self) -> None:
        name = f"worker{self._begun}"
        self._begun += 1
        options = ("--cores", "1", "--memory", "1200M", "--work-dir", str(self._folder / name))
        self.workers.append(self._begin(name, "worker.Worker", *options, self.url))

    def _until_known(self) -> None:
        self._until("its workers are known", lambda: self._log("master").count("Registering worker") == self._begun)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a worker at once, with what runs in it."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def _begin(self, name: str, what: str, *options: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        env = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": JAVA}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1",
                 "--webui-port", "0", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
            )  # fmt: skip

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"never reached: {what}\n{self._log('master')}"
            time.sleep(_PAUSE_S)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")
