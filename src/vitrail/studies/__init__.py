"""Studies: a recipe that is varied, all of its runs, one table and one plot."""
