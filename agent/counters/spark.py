"""A Spark to work with: of this host alone, or a cluster that answers within a minute."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds for a connection to a master, and then for a session with its first worker. Together less than a minute.
CONNECT_S: Final = 5.0
CLUSTER_S: Final = 50.0
_POLL_S: Final = 0.2

#: How Java runs here. Most of a job is code that is run a few times: compiled as well as can be is only what is run
#: ten times as often as Java takes for often, and one thread collects what is not needed any more.
_JAVA: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
)

_LOG4J: Final = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SummaryError(Exception):
    """The samples cannot be summarised; the text says why, and what to do."""


class SparkMissing(SummaryError):
    """PySpark or Java is not installed, or does not start."""


class ClusterUnreachable(SummaryError):
    """The Spark master, or its workers, do not answer."""


@contextmanager
def spark_session(
    master: str = "local[2]",
    *,
    driver_host: str | None = None,
    event_log: str | None = None,
    progress: bool = False,
    patience_s: float = CLUSTER_S,
) -> Iterator[SparkSession]:
    """A quiet session, ended afterwards; one that is active already is used and kept.

    ``driver_host`` is where the workers of a cluster reach this host: unless given, the address from which the master
    is reached. ``event_log`` is a folder that takes Spark's event log. ``progress`` shows on stderr how far
    each job is. ``patience_s``: for how long a cluster may take
    to begin, once Java runs here. Raises ``SparkMissing``, ``ClusterUnreachable``.
    """
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise SparkMissing("summaries need Java 17 or newer: install openjdk-17-jre-headless, or set JAVA_HOME")
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(
            "summaries need PySpark: install the extra `spark`, as in `pip install 'frs-agent[spark]'`"
        ) from error
    if SparkContext._active_spark_context is not None:  # whoever began it ends it; it is active in that thread only
        yield SparkSession.builder.getOrCreate()
        return
    local = master.startswith("local")
    host = driver_host or ("127.0.0.1" if local else _address_towards(master))
    with tempfile.TemporaryDirectory(prefix="frs-spark-") as scratch:
        log4j = Path(scratch, "log4j2.properties")
        log4j.write_text(_LOG4J)
        if local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        java = _JAVA if local and "JAVA_TOOL_OPTIONS" not in os.environ else ""  # two collectors are an error to Java
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": str(progress).lower(),
            "spark.driver.host": host,
            # What was given need not be an address of this host: it may be that of a router before it.
            "spark.driver.bindAddress": host if driver_host is None else "0.0.0.0",  # noqa: S104
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} {java}",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": Path(scratch, "warehouse").as_uri(),
        }
        if local:
            settings |= {"spark.sql.shuffle.partitions": "4", "spark.local.dir": scratch}
        if event_log is not None:
            settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": event_log}
        conf = SparkConf().setMaster(master).setAppName("frs summarize").setAll(list(settings.items()))
        try:
            SparkContext._ensure_initialized(conf=conf)  # starts Java, which is no matter of the master
        except Exception as error:
            raise _no_spark(error) from error
        until = time.monotonic() + patience_s
        spark = _begin(SparkSession.builder.config(conf=conf), master, patience_s)
        try:
            spark.sparkContext.setLogLevel("FATAL")
            if not local:
                _await_worker(spark, master, host, until, patience_s)
            yield spark
        finally:
            spark.stop()


def reads(spark: SparkSession, scheme: str) -> bool:
    """Whether this Spark has a file system for URLs of that kind, as `s3a` with hadoop-aws among its packages."""
    from py4j.protocol import Py4JJavaError

    context: Any = spark.sparkContext
    try:
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def _begin(builder: Any, master: str, patience_s: float) -> Any:
    """The session, unless it takes too long: Spark itself waits for a master as long as it takes."""
    begun: list[Any] = []
    failed: list[Exception] = []

    def begin() -> None:
        try:
            begun.append(builder.getOrCreate())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=begin, name="spark session", daemon=True)
    thread.start()
    thread.join(None if master.startswith("local") else patience_s)
    if begun:
        return begun[0]
    if not failed:
        raise ClusterUnreachable(
            f"{master} takes connections and does not answer within {patience_s:g} s: is a Spark master of this "
            "version there?"
        )
    if not master.startswith("local"):
        raise ClusterUnreachable(f"Spark does not start on {master}: {_said(failed[0])}") from failed[0]
    raise _no_spark(failed[0]) from failed[0]


def _no_spark(error: Exception) -> SparkMissing:
    return SparkMissing(
        f"Spark does not start; it needs Java 17 or newer (openjdk-17-jre-headless). It says: {_said(error)}"
    )


def _said(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or repr(error)


def _address_towards(master: str) -> str:
    """The address of this host from which a standalone master is reached. Raises ``ClusterUnreachable``."""
    if not master.startswith("spark://"):
        return socket.gethostname()
    why = []
    for place in master.removeprefix("spark://").split(","):
        name, _, port = place.rpartition(":")
        try:
            with socket.create_connection((name.strip("[]"), int(port)), CONNECT_S) as to:
                return str(to.getsockname()[0])
        except (OSError, ValueError) as error:
            why.append(f"{place}: {error}")
    raise ClusterUnreachable(f"the Spark master {master} cannot be reached ({'; '.join(why)})")


def _await_worker(spark: Any, master: str, host: str, until: float, patience_s: float) -> None:
    """Wait, at most until this time, until a worker has an executor for us: with none, Spark would wait for ever."""
    status = spark.sparkContext._jsc.sc()
    while status.getExecutorMemoryStatus().size() < 2:  # one is the driver
        if time.monotonic() > until:
            raise ClusterUnreachable(
                f"{master} gave no executor within {patience_s:g} s: no worker has cores and memory left, or none "
                f"reaches this host at {host} (see --driver-host)"
            )
        time.sleep(_POLL_S)
