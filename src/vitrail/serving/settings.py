"""How a server behaves: where it listens, how it gathers batches, and what it refuses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields

from vitrail.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All bounds of a server. A request beyond one of them gets an answer that names it."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free

    # computing
    engine: str = "exact"  # or auto, torch, onnx, openvino, int8, merged: see `vitrail.shipping.engines.choose`
    device: str | None = None  # None: the fastest there is
    img_size: int | None = None  # None: the model's own
    batch_size: int = 16  # most pictures that go through the model at once
    max_wait: float = 0.005  # seconds that a batch waits for pictures that are being decoded
    decoders: int | None = None  # threads that decode; None: one for each processor

    # what waits
    queue: int = 256  # pictures of one model that are decoded, wait or are computed; beyond them 429
    deadline: float = 30.0  # seconds from the last byte of a request to its answer; beyond them 504
    stop_seconds: float = 30.0  # that a stopping server waits for its last answers

    # what is taken
    max_body: int = 32 * MIB  # bytes, also after decompression
    max_held: int = 512 * MIB  # bytes of all requests together
    max_pixels: int = 64_000_000  # of one picture
    max_pictures: int = 64  # in one request
    max_connections: int = 1000

    # how slow a client may be
    header_seconds: float = 10.0
    body_seconds: float = 10.0  # after them, a body must have come at `body_rate`
    body_rate: int = 16 * 1024  # bytes per second
    keep_alive: float = 5.0  # seconds between two requests

    watch: bool = False  # load a model again when its files change

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("port", "max_wait"):
                continue
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ConfigError(f"{field.name}={value} must be above 0")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} is not a port: give 0 to 65535 (0: any that is free)")
        if not 0 <= self.max_wait <= 1:
            raise ConfigError(f"max_wait={self.max_wait} must be from 0 to 1 second")
        if self.max_pictures > self.queue:
            raise ConfigError(
                f"a request of {self.max_pictures} pictures never fits a queue of {self.queue}: "
                "raise queue, or lower max_pictures"
            )

    @property
    def least_queue(self) -> int:
        """Pictures that are let in however slow the model has become: batches are full, and every request fits."""
        return max(4 * self.batch_size, self.max_pictures)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
