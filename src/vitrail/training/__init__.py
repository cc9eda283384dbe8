"""Training: the recipe, the loop, optimisers, schedules, checkpoints, parallelism."""
