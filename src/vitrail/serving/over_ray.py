"""The same server on a Ray cluster: every replica is one, and Ray Serve spreads requests over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vitrail.errors import VitrailError
from vitrail.serving.app import make_app
from vitrail.serving.computing import Loaded
from vitrail.serving.hosting import Source
from vitrail.serving.serve import named_models
from vitrail.serving.settings import Settings

_GPUS = ("cuda", "cuda:0")


def ray_application(
    models: Source | Mapping[str, Source] | None = None,
    *,
    replicas: int = 1,
    cpus: float = 1,
    token: str | None = None,
    **settings: Any,
) -> Any:
    """A Ray Serve application, for `ray.serve.run(ray_application("my-model/", replicas=8), route_prefix="/")`.

    models: as `vitrail.serve` takes them; a path must lead to the model on every node.
    replicas: how many servers; each has its models, its queue and its batches.
    cpus: of each replica; with `device="cuda"` each takes one GPU too.
    settings: fields of `Settings`; where to listen is Ray's affair.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to its makers
    try:
        from ray import serve
    except ImportError as error:
        raise VitrailError("this needs Ray Serve: pip install 'vitrail[ray]'") from error
    chosen, named = Settings(**settings), named_models(models)

    def build() -> Any:  # on each replica
        loaded = {name: (source, Loaded(source, chosen)) for name, source in named.items()}
        return make_app(loaded, chosen, token=token).asgi

    made = serve.deployment(
        name="vitrail",
        num_replicas=replicas,
        max_ongoing_requests=chosen.queue,
        ray_actor_options={"num_cpus": cpus, "num_gpus": 1 if chosen.device in _GPUS else 0},
        graceful_shutdown_timeout_s=chosen.stop_seconds,
    )
    return made(serve.ingress(build)()).bind()
