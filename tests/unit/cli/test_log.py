"""Log lines say where they belong."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from agent.log import get_logger, setup_logging


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_line_carries_its_context() -> None:
    stream = io.StringIO()
    setup_logging("info", stream)
    logger = get_logger("frs.test", set_name="docs", connection="a->b")
    logger.info("joined in %d s", 3)
    logger.bind(change_order="3f2504e0").warning("retried")
    logger.debug("not shown")
    get_logger("frs.test").error("100%% of nothing")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        rf"{stamp} INFO    frs\.test: \[docs\] \[a->b\] joined in 3 s\n"
        rf"{stamp} WARNING frs\.test: \[docs\] \[a->b\] \[co 3f2504e0\] retried\n"
        rf"{stamp} ERROR   frs\.test: 100%% of nothing\n",
        stream.getvalue(),
    )
    setup_logging("debug", stream)
    logger.debug("shown")
    assert stream.getvalue().count("shown\n") == 1
