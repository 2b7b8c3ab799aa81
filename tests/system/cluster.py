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

_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.1
#: What runs for seconds is done before it is compiled any better.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_AT: Final = re.compile(r"Starting Spark master at (spark://\S+)")


class Cluster:
    """``workers`` of one core each; all of it ends with the block. Their logs are in ``folder``."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        self._folder.mkdir()
        try:
            self._master = self._begin("master", "master.Master", "--port", "0")
            self._until("the master begins", lambda: bool(_AT.search(self._log("master"))))
            self.url = _AT.findall(self._log("master"))[0]
            for number in range(self._count):
                options = ("--cores", "1", "--memory", "1200M", "--work-dir", str(self._folder / f"work{number}"))
                self.workers.append(self._begin(f"worker{number}", "worker.Worker", *options, self.url))
            registered = "Registering worker"
            self._until("its workers are known", lambda: self._log("master").count(registered) == self._count)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self.workers, *([self._master] if self._master else [])]:
            self.kill(process)

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
