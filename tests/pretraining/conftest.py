"""Many small trainings."""

from tests.quiet import one_thread, own_cache  # noqa: F401
