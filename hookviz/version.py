"""The version, in the one place from which packaging, files and commands read it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
