"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Of one server; the registry is its own, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "vitrail_requests", "Answers by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "vitrail_request_seconds", "From the headers to the answer", ["route"], buckets=_SECONDS, registry=registry
        )
        self.pictures = Counter("vitrail_pictures", "Pictures computed", ["model", "task"], registry=registry)
        self.batches = Histogram(
            "vitrail_batch_pictures", "Pictures in a batch", ["model"], buckets=_SIZES, registry=registry
        )
        self.batch_seconds = Histogram(
            "vitrail_batch_seconds", "A batch in the model", ["model"], buckets=_SECONDS, registry=registry
        )
        self.queue = Gauge(
            "vitrail_queue_pictures", "Pictures that are decoded, wait or are computed", ["model"], registry=registry
        )
        self.room = Gauge("vitrail_queue_room_pictures", "Pictures that may be there now", ["model"], registry=registry)
        self.rejects = Counter(
            "vitrail_rejects", "Requests that were refused, by reason", ["reason"], registry=registry
        )
        self.deaths = Counter("vitrail_model_deaths", "Threads of models that ended", ["model"], registry=registry)
        self.reloads = Counter("vitrail_reloads", "Models loaded again", ["model", "result"], registry=registry)
        self.connections = Gauge("vitrail_connections", "Open connections", registry=registry)
        self.held = Gauge("vitrail_held_bytes", "Bytes of requests in memory", registry=registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
