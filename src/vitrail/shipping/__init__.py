"""Shipping: models as files that need no vitrail, and predictions over millions of pictures.

What computes is an `Engine` (`engines.py`); bulk prediction and the server use nothing else of this:

    from vitrail.shipping.engines import choose, open_engine

    engine = choose(classifier, "auto", pictures=1_000_000)   # or torch | onnx | openvino | int8 | merged | a path
    print(engine.name, engine.detail)       # merged  OpenVINO 2026.4.1, int8 and merged tokens, on 2 threads
    pixels = np.stack([engine.preprocessing.pixels(path) for path in paths])   # uint8 (n, height, width, channels)
    logits = engine.run(pixels)             # float32 (n, classes)
    vectors = engine.features(pixels)       # float32 (n, width): what the head reads
    logits, vectors = engine.both(pixels)   # of one pass
    engine.close()                          # or: with choose(…) as engine

Any n will do, from one call to the next; calls from several threads at the same time will not. `pixels` may be
overwritten as soon as a call returns. `open_engine(path)` is the engine of a file that `vitrail export` wrote, without
the model; it has `engine.classes` and `engine.preprocessing` too. What `auto` takes depends on the model, the machine
and `pictures` alone, never on what is in the cache, so that a run that is continued computes as it began.
"""
