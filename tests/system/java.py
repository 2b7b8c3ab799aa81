"""How Java is run where it runs for seconds."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Final

import pytest

#: Options by which what it does is done before it is compiled any better.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextlib.contextmanager
def java() -> Iterator[None]:
    """PySpark and Java are there, else the test is skipped, which says what to install; Java is told the above."""
    pytest.importorskip("pyspark", reason="needs PySpark: pip install 'frs-agent[spark]'")
    if shutil.which("java") is None:
        pytest.skip("needs Java: install openjdk-17-jre-headless")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
        yield
