"""Ranks other than 0 write no files and show no progress."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format as _legacy_h5
from keras.src.saving import saving_lib as _saving_lib

_WRITERS = ("BackupAndRestore", "CSVLogger", "TensorBoard")
_on_all_ranks: weakref.WeakSet[Any] = weakref.WeakSet()


def silence_this_rank() -> None:
    """Turns off progress bars, warnings, and the callbacks of Keras that write files, in this process."""
    keras.config.disable_interactive_logging()
    warnings.simplefilter("ignore", UserWarning, append=True)  # behind the user's own filters
    tf.get_logger().setLevel("ERROR")
    for name in _WRITERS:
        writer = getattr(keras.callbacks, name)
        for method in dir(writer):
            if method.startswith("on_"):
                setattr(writer, method, _no_operation)
    keras.callbacks.TensorBoard.set_model = keras.callbacks.Callback.set_model
    for home in (keras.Model, _saving_lib, _legacy_h5):
        for name in ("save", "save_weights", "export", "save_model", "save_weights_only", "save_model_to_hdf5"):
            if hasattr(home, name):
                setattr(home, name, _unless_trained_on_all(getattr(home, name)))


def trains_on_all_ranks(model: Any) -> None:
    """From now on the model is saved by rank 0 alone."""
    _on_all_ranks.add(model)


def _unless_trained_on_all(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def save(model: Any, *args: Any, **kwargs: Any) -> Any:
        return None if model in _on_all_ranks else own(model, *args, **kwargs)

    return save


def _no_operation(self: Any, *args: Any, **kwargs: Any) -> None:
    """A callback method of a rank that writes no files."""
