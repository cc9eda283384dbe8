"""Probes: how good a model's features are, judged by simple classifiers that are fitted on them."""
