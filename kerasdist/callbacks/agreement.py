"""What all ranks must agree on during a ``fit``: where it starts and when it stops."""

from __future__ import annotations

from typing import Any

import keras

from kerasdist import keras_hooks
from kerasdist.engine import meeting
from kerasdist.engine.meeting import gather_json
from kerasdist.errors import RankMismatchError
from kerasdist.replica import Replica


class Agreement(keras.callbacks.Callback):
    """Runs behind the user's callbacks on every rank.

    Args:
        replica: The model's copy on this rank.
    """

    comes_last = 1

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.replica = replica
        self._compared = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts at rank 0's epoch, which ``BackupAndRestore`` may have read from a file."""
        epochs = gather_json(keras_hooks.initial_epoch(self.model), self.replica.group, "initial_epoch")
        keras_hooks.set_initial_epoch(self.model, epochs[0])
        self._compared = False
        self.replica.within_epoch = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Refuses ranks that were told to train different epochs, before they wait for each other."""
        self.replica.exchange.epoch, self.replica.exchange.steps = epoch, 0
        if self._compared:
            return
        self._compared = True
        plans = gather_json([epoch, (self.params or {}).get("epochs")], self.replica.group, "epochs")
        if any(plan != plans[0] for plan in plans):
            table = "".join(f"\n  rank {rank}: from {plan[0]} up to {plan[1]}" for rank, plan in enumerate(plans))
            raise RankMismatchError(
                f"rank {self.replica.group.rank}: the ranks are to train different epochs:{table}\nGive every rank the "
                "same `initial_epoch` and `epochs`."
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Nobody leaves ``fit`` alone: a rank that failed in the last hooks is noticed here."""
        self.replica.exchange.close()
        if self.replica.group.size > 1:
            meeting.meet(self.replica.group, "the end of fit")
            self.replica.end_training()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops on all ranks if one stops."""
        asked = gather_json(bool(self.model.stop_training), self.replica.group, "stop_training")
        self.model.stop_training = any(asked)
        self.replica.within_epoch = True

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation begins."""
        self.replica.evaluating = True

    def on_test_end(self, logs: Any = None) -> None:
        """Validation ends."""
        self.replica.evaluating = False
