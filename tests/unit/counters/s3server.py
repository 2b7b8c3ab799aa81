"""A server that speaks S3, in a process of its own, and buckets on it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

SECRET: Final = "secret/of+the test"
_MOTO: Final = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[int]:
    """Gives its port."""
    pytest.importorskip("moto")
    with subprocess.Popen([sys.executable, "-c", _MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


def bucket(port: int, name: str, patch: pytest.MonkeyPatch) -> str:
    """The URL of a folder in a bucket that is made; the environment has the credentials."""
    from pyarrow.fs import S3FileSystem

    patch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTHETEST")
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"samples-{re.sub('[^a-z0-9]+', '-', name.lower())}"[:60].strip("-")
    where = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "eu-central-1"}
    S3FileSystem(**where, allow_bucket_creation=True).create_dir(name)
    return f"s3://{name}/fleets?" + "&".join(f"{key}={value}" for key, value in where.items())
