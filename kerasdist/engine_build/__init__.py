"""Builds Horovod, the engine that moves tensors between workers, for the TensorFlow that is installed."""

from kerasdist.engine_build.check import check_build, explain_import_error

__all__ = ["check_build", "explain_import_error"]
