"""Trained models with real input, small enough to come with the package."""
