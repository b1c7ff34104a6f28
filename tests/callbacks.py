"""Callbacks that more than one test uses."""

from __future__ import annotations

import keras


class Rates(keras.callbacks.Callback):
    """The rates that the batches were taken at."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))
