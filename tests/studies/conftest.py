"""Runs of a study are many: what each leaves to look at is tested elsewhere, and takes most of their time."""

import pytest

from tests.quiet import one_thread, own_cache  # noqa: F401
from vitrail.training import job


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "write_reports", lambda *rest: [])
