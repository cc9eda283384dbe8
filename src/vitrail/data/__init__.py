"""From a folder, a table or a bucket of shards to batches: sources, splits, augmentation, loading."""
