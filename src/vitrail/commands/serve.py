"""`vitrail serve`: models behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import vitrail
from vitrail.errors import VitrailError


def serve(
    models: Annotated[list[str] | None, Parameter(negative="")] = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: str = "exact",
    device: str | None = None,
    img_size: int | None = None,
    batch_size: int = 16,
    max_wait: float = 5.0,
    queue: int = 256,
    deadline: float = 30.0,
    max_body: int = 32,
    max_pixels: int = 64,
    max_pictures: int = 64,
    max_connections: int = 1000,
    decoders: int | None = None,
    token_file: Path | None = None,
    examples: Path | None = None,
    watch: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Serve models over HTTP, with a page on which one sees them think.

    Example: vitrail serve my-model/ --port 8000

    Several: vitrail serve small=runs/a large=hf:google/vit-base-patch16-224. SIGTERM or Ctrl-C: it answers what is in
    flight and ends. SIGHUP: it loads its models again, without dropping a request.

    Parameters
    ----------
    models
        a model folder, a run, a checkpoint of any known family, hf:owner/name or an exported file; several as
        NAME=MODEL; none: the small model that comes with vitrail
    host
        the address to listen on; 127.0.0.1 is this machine alone, 0.0.0.0 everybody
    port
        0: any that is free
    engine
        what computes: exact, the quickest that gives the model's own numbers; auto, the quickest that keeps its
        accuracy; torch, onnx, openvino, int8, merged; an exported file is one itself
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    img_size
        read the pictures at another size; the positions are resized
    batch_size
        most pictures that go through the model at a time
    max_wait
        milliseconds that a batch waits for pictures that are being decoded
    queue
        pictures that may wait; beyond them, clients are told to come back (429)
    deadline
        seconds to an answer; beyond them, 504
    max_body
        MiB of a request, also after decompression
    max_pixels
        millions of pixels of a picture
    max_pictures
        in one request
    max_connections
        open at a time
    decoders
        threads that decode pictures; by default, one for each processor
    token_file
        a file with a token, which clients must send: Authorization: Bearer …
    examples
        a folder of pictures to try, for the page
    watch
        load a model again when its files change
    """
    given = _named(models or [])
    vitrail.serve(
        given,
        token_file=token_file,
        examples=examples,
        announce=lambda line: print(line, flush=True),
        host=host,
        port=port,
        engine=engine,
        device=device,
        img_size=img_size,
        batch_size=batch_size,
        max_wait=max_wait / 1000,
        queue=queue,
        deadline=deadline,
        max_body=max_body * 2**20,
        max_pixels=max_pixels * 10**6,
        max_pictures=min(max_pictures, queue),
        max_connections=max_connections,
        decoders=decoders,
        watch=watch,
    )
    return 0


def _named(models: list[str]) -> str | dict[str, str] | None:
    """NAME=MODEL, or models whose names follow from where they are."""
    if not models:
        return None
    if len(models) == 1 and "=" not in models[0]:
        return models[0]
    found: dict[str, str] = {}
    for one in models:
        name, equals, source = one.partition("=")
        if not equals:
            from vitrail.serving.serve import plain_name

            name, source = plain_name(one), one
        if name in found:
            raise VitrailError(f"two models are called {name}: give them names, as in {name}2={source}")
        found[name] = source
    return found
