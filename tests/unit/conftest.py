"""Small files are worked on in C, and in Python where that could not be built: tests of either ask for both."""

from __future__ import annotations

import pytest

from staging import smallfiles


@pytest.fixture(params=["small files in C", "small files in Python"])
def small_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test runs once each way."""
    if request.param.endswith("Python"):
        monkeypatch.setattr(smallfiles, "native", None)
    elif smallfiles.native is None:
        pytest.skip("the extension in C is not built")
