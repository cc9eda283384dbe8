"""Figures of merit: metrics, evaluation, probes, stress."""
