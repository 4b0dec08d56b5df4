"""Measurements: `python -m bench`. Goals are ratios taken in one run, because machines are noisy."""
