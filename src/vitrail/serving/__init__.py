"""Models behind HTTP: a server that gathers batches, refuses what it cannot do in one line, and shows a page."""
