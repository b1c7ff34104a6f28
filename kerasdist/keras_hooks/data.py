"""Keras' data adapters, and the loop of a ``fit`` over its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters import get_data_adapter as _get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays as can_convert_arrays
from keras.src.trainers.data_adapters.array_slicing import train_validation_split as train_validation_split
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

unpack_data = unpack_x_y_sample_weight


def get_data_adapter(**kwargs: Any) -> DataAdapter:
    """Keras' own adapter for x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight."""
    return _get_data_adapter(**kwargs)


class TrainingData:
    """What the loop of a ``fit`` takes its batches from.

    Args:
        iterator: Keras' own.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    @property
    def element_spec(self) -> Any:
        """The specification of a batch."""
        return self._iterator._distributed_dataset.element_spec

    @property
    def is_one_stream(self) -> bool:
        """Whether an epoch goes on where the last one ended, as with ``steps_per_epoch``."""
        return bool(self._iterator.steps_per_epoch)

    @property
    def comes_from_a_generator(self) -> bool:
        """Whether the user gave a Python generator."""
        return isinstance(self._keras_adapter, GeneratorDataAdapter)

    @property
    def changes_at_an_epochs_end(self) -> bool:
        """Whether the user's ``PyDataset`` does something there."""
        dataset = getattr(self._keras_adapter, "py_dataset", None)
        return dataset is not None and type(dataset).on_epoch_end is not keras.utils.PyDataset.on_epoch_end

    @property
    def is_shuffled_by_keras(self) -> bool:
        """Whether Keras shuffles arrays."""
        return isinstance(self._keras_adapter, ArrayDataAdapter) and bool(self._keras_adapter._shuffle)

    @property
    def _keras_adapter(self) -> Any:
        return getattr(self._iterator.data_adapter, "inner", self._iterator.data_adapter)

    @property
    def shuffles(self) -> list[tuple[int, int]]:
        """The seeds of each ``Dataset.shuffle`` that the data comes through, not of those inside of functions."""
        found, left = [], [self._iterator._distributed_dataset]
        while left:
            dataset = left.pop()
            if "_ShuffleDataset" in type(dataset).__name__ and hasattr(dataset, "_seed2"):
                found.append((int(dataset._seed), int(dataset._seed2)))
            left += list(dataset._inputs())
        return found

    def pass_over(self, epochs: int) -> None:
        """Leaves so many epochs behind, before the first.

        Where each epoch begins anew they are only begun and left, so that orders which change from epoch to epoch
        change as often; nothing of them is read. One stream is read up to the place.
        """
        iterator = self._iterator
        for _ in range(epochs):
            for begin, end, data in iterator._enumerate_iterator():
                if self.is_one_stream and _advance(data, end + 1 - begin):
                    continue
                if self.is_one_stream or iterator._num_batches is None:
                    # As Keras does where the data ends before the epoch: it is asked for anew.
                    iterator._current_iterator = None
                    iterator.data_adapter.on_epoch_end()
                    break

    def begin_behind(self, batches: int) -> None:
        """The next epoch begins behind so many of its batches, which are read for nothing."""
        iterator, own = self._iterator, self._iterator._enumerate_iterator

        def rest_of_epoch() -> Iterator[Any]:
            del iterator._enumerate_iterator
            for begin, end, data in own():
                if begin >= batches:
                    yield begin, end, data
                else:
                    _advance(data, end + 1 - begin)

        iterator._enumerate_iterator = rest_of_epoch


def _advance(iterator: Any, batches: int) -> bool:
    """Reads batches for nothing; whether there were as many."""
    return all(iterator.get_next_as_optional().has_value() for _ in range(batches))


@contextlib.contextmanager
def noted_training_data(note: Callable[[TrainingData], None]) -> Iterator[None]:
    """Calls ``note`` with the data of the ``fit`` that begins inside, once Keras has it."""
    made = TFEpochIterator.__init__

    def on_made(self: Any, *args: Any, **kwargs: Any) -> None:
        TFEpochIterator.__init__ = made
        made(self, *args, **kwargs)
        note(TrainingData(self))

    TFEpochIterator.__init__ = on_made
    try:
        yield
    finally:
        TFEpochIterator.__init__ = made
