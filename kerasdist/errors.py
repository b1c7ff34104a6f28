"""What can go wrong, and who is told: every error that kerasdist raises of its own."""

from __future__ import annotations


class KerasdistError(Exception):
    """Base of the errors that are kerasdist's own (not a plain bad argument)."""


class EngineError(KerasdistError, RuntimeError):
    """The engine is missing, was built for something else, or does not see all workers."""


class RankMismatchError(KerasdistError, ValueError):
    """The ranks were given different models, optimizers, options or data."""


class RankFailedError(KerasdistError, RuntimeError):
    """Another rank failed, or ended, while this one needed it; the message names the rank and the cause."""


class BuildError(KerasdistError, RuntimeError):
    """Building the engine failed, or cannot start on this machine."""
