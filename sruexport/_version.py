"""The version, in the one place where it is kept."""

__version__ = "0.1.0"
