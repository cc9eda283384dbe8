"""Predictions over any number of pictures: streamed, in parts, exactly once.

`sources` makes a stream of `items` of whatever was named, `listing` freezes it in a file, `decoding` and `running` read
and compute, `parts` writes, `ledger` remembers; `predict` is all of it, and `over_ray` the same on a cluster.
"""
