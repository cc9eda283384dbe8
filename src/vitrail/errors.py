"""The one kind of error that is meant for the user: a single line that says what is wrong and what to do."""


class VitrailError(Exception):
    """Something the user can put right. The command line prints it as one line; a traceback needs `--debug`."""


class PictureError(VitrailError):
    """A picture that cannot be read, or that is refused."""


class ConfigError(VitrailError, ValueError):
    """A configuration that describes no model."""


class WeightsError(VitrailError):
    """A checkpoint that cannot be read, or that does not fit."""


class UnknownSizeError(WeightsError):
    """A checkpoint whose positions make no square, so that its picture size must be given."""


class DataError(VitrailError):
    """Pictures and labels that cannot be used as they are."""


class ShortMemoryError(VitrailError):
    """Less memory than what was asked for needs."""


NO_MEMORY = "there is not enough memory: take smaller batches (--batch-size), smaller pictures or a smaller model"


def is_short_of_memory(error: Exception) -> bool:
    """Whether Python or torch say so: torch by another class on each device."""
    words = str(error)
    return isinstance(error, MemoryError) or "alloc_cpu" in words or "out of memory" in words
