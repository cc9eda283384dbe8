"""Answers that are not what was asked for: a status, one line, and what the client may do."""

from __future__ import annotations

from starlette.responses import JSONResponse


class RefusalError(Exception):
    """A request that is not answered as asked; the client gets the status and the line."""

    def __init__(self, status: int, words: str, *, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(words)
        self.status, self.words, self.retry_after = status, words, retry_after
        self.reason = reason  # counted under this name in the metrics; none: not counted

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return problem(self.status, self.words, headers)


def problem(status: int, words: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The one form that every error has."""
    return JSONResponse({"error": words}, status, headers)


def bad(words: str) -> RefusalError:
    """The request itself is wrong."""
    return RefusalError(400, words)
