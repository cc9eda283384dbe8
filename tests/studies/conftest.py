"""Runs of a study are many: what each leaves to look at is tested elsewhere, and takes most of their time."""

from collections.abc import Iterator

import pytest
import torch

from vitrail.training import job


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "write_reports", lambda *rest: [])
