"""Speed: the planner, which knows memory, time and cost before they are spent, and the benchmark beside the peers."""
