"""Learning without labels: models and objectives for the same loop that trains classifiers."""
