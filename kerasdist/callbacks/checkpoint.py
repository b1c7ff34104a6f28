"""Comes back after a crash or a pre-emption: writes the whole training state, and continues where it stands."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist import data, engine, handshake, keras_hooks
from kerasdist.callbacks.agreement import Agreement
from kerasdist.checkpoint import files, gathering, place, resize, state
from kerasdist.config import positive_integer
from kerasdist.engine import meeting
from kerasdist.engine.meeting import gather_json
from kerasdist.launch import progress
from kerasdist.replica import Replica


def warn_if_it_begins_anew(callbacks: Any) -> None:
    """On rank 0, in a job whose workers were started again: nothing among the callbacks continues the training."""
    again = progress.restarts()
    given, users_list = keras_hooks.make_callback_list(callbacks)
    listed = given if users_list is None else users_list.callbacks
    continues = (Checkpoint, keras.callbacks.BackupAndRestore)
    if again and engine.rank() == 0 and not any(isinstance(one, continues) for one in listed):
        warnings.warn(
            f"The workers of this job were started again ({again} times so far), and `fit` has no kerasdist.Checkpoint "
            "among its callbacks: it trains from the beginning, and so it will each time that workers come or go.",
            stacklevel=3,
        )


class Checkpoint(keras.callbacks.Callback):
    """Writes the whole state of a ``fit`` from time to time; the next ``fit`` that is given it continues there.

    The state is that of every rank: weights, optimizers, accumulated gradients, loss scale, metrics of the running
    epoch, moving statistics, seeds, what compressors and algorithms keep, and the place in the data. Rank 0 writes it
    as one file, under another name first, so that no moment of being killed leaves a torn one. A file that is torn or
    foreign all the same is skipped with a warning, and the one before it is taken.

    It works in the scope of a strategy, beside ``DistributedOptimizer``, and in one process of plain Keras. One folder
    is for one training. All ranks must give it to the same ``fit`` with the same arguments; only rank 0 needs the
    folder. Files load without executing code (docs/checkpoints.md).

    Args:
        folder: Where the files are; it is made if need be.
        every: Batches of an epoch from one checkpoint to the next. Default None: only at each epoch's end, where one is
            written in any case; and when a SIGTERM ends the training.
        keep: How many files are kept. Default 3.

    Raises:
        TypeError: An argument is of the wrong type.
        OSError: At the start of ``fit``, on all ranks: rank 0 cannot write to the folder; or later, on rank 0.
        ValueError: ``folder`` is empty; ``every`` or ``keep`` is below 1; at the start of ``fit``, on all ranks: the
            checkpoint is of another model, optimizer, compression, algorithm, length of an epoch or seed.
        RankMismatchError: At the start of ``fit``, the ranks give different arguments.

    Example:
        ```python
        model.fit(x, y, epochs=90, callbacks=[kerasdist.Checkpoint("checkpoints", every=500)])
        ```
    """

    comes_last = 2  # behind Agreement: what it writes is what the other callbacks have left

    def __init__(self, folder: Any, every: int | None = None, keep: int = 3) -> None:
        super().__init__()
        if not isinstance(folder, (str, Path)):
            raise TypeError(f"`folder` must be a path. Received: folder={folder!r} of type {type(folder).__name__}")
        if not str(folder).strip():
            raise ValueError(f"`folder` must be a path; '.' is the working folder. Received: folder={folder!r}")
        self.folder = Path(folder)
        if every is not None:
            positive_integer("every", every)
        positive_integer("keep", keep)
        self.every, self.keep = every, keep
        self._first = self._epochs = 0
        self._place = place.Place(0, 0)
        self._written: place.Place | None = None
        self._found: place.Found | None = None
        self._resized = False
        self._random: state.State = {}
        self._replayed: tuple[state.State, state.State] = {}, {}
        self._data: Any = None
        self._facts: dict[str, Any] = {}
        self._header: dict[str, Any] = {}
        self._logs = contextlib.ExitStack()
        keras_hooks.surround_fit()

    # Around fit -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def surround(self, model: Any, call: dict[str, Any]) -> Iterator[None]:
        """What a ``fit`` runs in: looks for a checkpoint before Keras reads the data. Collective."""
        group = engine.world()
        self._refuse(model, call, group)
        place.same_on_all_ranks("the arguments `every` and `keep` of Checkpoint", [self.every, self.keep], group)
        self._found = place.find(self.folder, group)
        self._written, self._facts, self._resized = None, {}, False
        self._first, self._epochs = int(call.get("initial_epoch", 0)), int(call.get("epochs", 1))
        self._place = place.Place(self._first, 0)
        global_batch = getattr(getattr(keras_hooks.patched_by(model), "settings", None), "global_batch", False)
        if self._found is not None:
            self._resized = place.note_workers(self._found, group, global_batch)
        self._seeds(model, call)
        rates = [keras_hooks.rate_variable(one) for one in keras_hooks.own_optimizers(model)]
        self._header["rates"] = [None if one is None else float(keras_hooks.numpy_values([one])[0]) for one in rates]
        if self._found is not None:
            self._place = self._written = self._found.place(self._first, self._epochs)
            if self._resized and not global_batch and not self._found.header["facts"]["one stream for all epochs"]:
                done = resize.batch_now(
                    self._place.batch, self._found.header["workers"], group.size, model.steps_per_execution
                )
                self._place = place.Place(self._place.epoch, done)
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras_hooks.noted_training_data(self._note))
            if group.size == 1:
                stack.enter_context(meeting.sigterm_noted())
            self._logs = stack.enter_context(contextlib.ExitStack())
            try:
                yield
            finally:
                keras_hooks.set_initial_epoch(model, None)
                replica = keras_hooks.patched_by(model)
                if isinstance(replica, Replica):
                    replica.when_terminated = None

    def _refuse(self, model: Any, call: dict[str, Any], group: Any) -> None:
        callbacks, users_list = keras_hooks.make_callback_list(call.get("callbacks"))
        here = f"rank {group.rank}: Checkpoint"
        if users_list is not None:
            raise ValueError(f"{here} must come behind other callbacks: give `fit` a list. Received: a CallbackList")
        for other in callbacks:
            if other is not self and isinstance(other, (Checkpoint, keras.callbacks.BackupAndRestore)):
                name = type(other).__name__
                raise ValueError(f"{here} continues a training, and so does {name}. Leave one of them out.")
        if group.size > 1 and not any(isinstance(one, Agreement) for one in callbacks):
            raise ValueError(
                f"{here} is for a model that trains on all {group.size} workers. Make the model in strategy.scope(), "
                "or give `fit` a DistributedOptimizer() too."
            )

    def _seeds(self, model: Any, call: dict[str, Any]) -> None:
        """Lets the data come in the order that it had; where there was none yet, in one that can be repeated."""
        group, strategy = engine.world(), getattr(keras_hooks.patched_by(model), "owner", None)
        drawn = getattr(strategy, "drawn_seed", None)
        users = gather_json(None if drawn is not None else keras_hooks.user_seed(), group, "checkpoint.seeds")
        before = None
        if self._found is not None:
            place.check_seeds(self._found, users, group)
            before = self._found.header["seeds"]
            if before["drawn"] is not None and strategy is not None:
                drawn = before["drawn"]
                strategy.take_drawn_seed(drawn)
        x, order = call.get("x"), None
        if isinstance(x, data.SharedData):
            if before is not None and before["order"] is not None:
                x.reseed(before["order"])
            order = x.seed
        elif all(one is None for one in users) and not isinstance(x, keras_hooks.DataAdapter):
            own = int(np.random.SeedSequence().generate_state(1)[0])
            order = before["order"] if before is not None else gather_json(own, group, "checkpoint.order")[0]
            if order is not None and not data.shuffle_arrays(call, order):
                order = None
        self._header = {"seeds": {"users": users, "drawn": drawn, "order": order}}

    def _note(self, training_data: Any) -> None:
        self._data = training_data
        doubt = place.doubt(training_data, self._header["seeds"])
        if doubt and engine.rank() == 0:
            warnings.warn(doubt, stacklevel=2)

    # Hooks of Keras -------------------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        """Continues from an epoch's end before that epoch's hooks; collective, as all of these hooks."""
        replica = keras_hooks.patched_by(self.model)
        if isinstance(replica, Replica):
            replica.when_terminated = self._write_here
        if self._found is None:
            return
        here = self._place
        keras_hooks.set_initial_epoch(self.model, here.epoch)
        began = state.take_random()
        if here.epoch < self._epochs:
            self._data.pass_over(here.epoch - self._first)
        self._replayed = began, state.take_random()
        if here.batch:
            self._data.begin_behind(here.batch)
        else:
            self._restore()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Continues within an epoch, after the hooks that begin it."""
        if self._found is not None:
            self._restore()
        else:
            self._place = place.Place(epoch, 0)
        if not self._place.batch:
            self._build()
            self._random = state.take_random()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes where it is due."""
        before, self._place = self._place, place.Place(self._place.epoch, batch + 1)
        if engine.size() == 1 and meeting.terminating():
            self._write_here()
            raise meeting.end_by_sigterm(f": stopped after {batch + 1} batches of epoch {self._place.epoch}.")
        is_last = batch + 1 >= ((self.params or {}).get("steps") or np.inf)
        if self.every and not is_last and self._place.batch // self.every > before.batch // self.every:
            self._write_here()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the state between two epochs."""
        self._logs.close()
        self._place = place.Place(epoch + 1, 0)
        self._random = state.take_random()
        self._write_here(stopped=bool(self.model.stop_training))
        if engine.size() == 1 and meeting.terminating():
            raise meeting.end_by_sigterm(f": stopped at the end of epoch {epoch}.")

    # Writing and reading --------------------------------------------------------------------------------------------

    def _write_here(self, stopped: bool = False) -> None:
        """Writes what this moment's state is, unless it is there already. Collective."""
        here, group = self._place, engine.world()
        if here == self._written:
            return
        own = {**state.take(self.model, within_epoch=bool(here.batch)), **self._random}
        whole, differing = gathering.to_root(own, group)
        if group.rank == 0:
            header = {**self._header, "place": list(here), "stopped": stopped, "workers": group.size}
            header |= {"own": differing, "facts": self._known_facts()}
            try:
                files.prune(self.folder, files.write(self.folder, here, header, whole), self.keep)
            except OSError as error:
                raise OSError(
                    f"rank 0: no checkpoint could be written to {self.folder}: {error}. Those that were there before "
                    "are whole. Make room, or whatever else the error asks for, and start the job again: it continues "
                    "from the last."
                ) from error
            progress.tell(here, self._steps())
        self._written = here

    def _restore(self) -> None:
        """Gives every rank the state of the checkpoint that was found. Collective."""
        found, group = self._found, engine.world()
        assert found is not None
        self._found = None
        self._build()
        place.check_facts(found, self._known_facts(), group)
        arrays = found.arrays
        if arrays is not None and self._resized:
            before, own_names = found.header["workers"], found.header["own"]
            sums, left_out = state.sums(self.model), state.of_parts(self.model)
            arrays = resize.resized(arrays, own_names, before, group.size, sums, left_out)
        own = gathering.from_root(arrays, group)
        random = {name: own[name] for name in [*own] if name.startswith("random/")}
        doubt = place.replay_doubt(self._data, *self._replayed, random)
        if doubt and group.rank == 0:
            warnings.warn(doubt, stacklevel=2)
        state.put_random(own)
        self._random = state.take_random() | random
        state.put(self.model, own, within_epoch=bool(found.header["place"][1]), resized=self._resized)
        if self._resized:
            self._follow_rates(found)
        if group.rank == 0:
            print(f"{found}: the training continues there.", file=sys.stderr, flush=True)
            progress.tell(self._place, self._steps(), restored=True)
        if self._place.epoch >= self._epochs and group.rank == 0:
            warnings.warn(
                f"{found} is the end of this training ({found.why_it_ended}): nothing is left to train. For "
                "another training give Checkpoint another folder.",
                stacklevel=2,
            )
        if self._place.batch:
            self._logs.enter_context(keras_hooks.logs_without_steps(self.model))
            replica = keras_hooks.patched_by(self.model)
            if isinstance(replica, Replica):
                replica.exchange.steps = self._place.batch // self.model.steps_per_execution
        if self._place != self._written:
            self._take_the_place_of(found)

    def _take_the_place_of(self, found: place.Found) -> None:
        """Writes where this epoch stands in steps of as many workers, in place of those that count otherwise."""
        there = self._written
        self._write_here()
        if engine.rank() == 0 and there is not None:
            files.drop_between(self.folder, self._place, there)

    def _follow_rates(self, found: place.Found) -> None:
        """The checkpoint's rates, times what the script's own have changed by with the number of workers."""
        optimizers = keras_hooks.own_optimizers(self.model)
        for optimizer, before, now in zip(optimizers, found.header["rates"], self._header["rates"], strict=True):
            if before and now is not None and now != before:
                rate = keras_hooks.rate_variable(optimizer)
                rate.assign(keras_hooks.numpy_values([rate])[0] * (now / before))

    def _steps(self) -> int:
        """Steps that were ever taken."""
        return max((int(one.iterations) for one in keras_hooks.own_optimizers(self.model)), default=0)

    def _build(self) -> None:
        """Makes all variables, and all ranks hold one state, if that was not done yet. Collective."""
        replica, spec = keras_hooks.patched_by(self.model), self._data.element_spec
        inside = spec.data if isinstance(spec, data.Batch) else spec
        keras_hooks.build(self.model, inside)
        # Before the replica is prepared, which takes metrics back where a step is not applied.
        with contextlib.suppress(ValueError):  # as of a model without a call; Keras makes them in the first step
            keras_hooks.build_metrics(self.model, inside)
        if isinstance(replica, Replica) and not replica.ready:
            replica.prepare(spec)

    def _known_facts(self) -> dict[str, Any]:
        """What must be the same in a training that continues this one."""
        if not self._facts:
            replica = keras_hooks.patched_by(self.model)
            several = isinstance(replica, Replica) and replica.group.size > 1
            facts = handshake.signature(self.model, replica.settings if several else None)
            facts["batches of an epoch"] = (self.params or {}).get("steps")
            facts["one stream for all epochs"] = self._data.is_one_stream
            facts["steps_per_execution"] = self.model.steps_per_execution
            self._facts = facts
        return self._facts
