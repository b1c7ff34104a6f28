"""What one rank's copy of a model does beyond Keras: in each step, at the start of training, at an epoch's end.

Both doors attach a ``Replica`` to a model; they differ in who shares out the data and in how long it stays.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from kerasdist import handshake, keras_hooks
from kerasdist.config import Settings
from kerasdist.data.check import compare_evaluated
from kerasdist.data.shared import rows_of
from kerasdist.engine import Group, meeting
from kerasdist.engine.meeting import gather_json
from kerasdist.exchange import StepExchange
from kerasdist.helpers import average_variables, send_variables
from kerasdist.metrics import average_layer_state, check_equal_states, mean_logs, sum_states
from kerasdist.normalization import synchronized
from kerasdist.optimizer import DistributedApply, agree_on_names, distribute_optimizer, distributed_apply
from kerasdist.step import Batch, Step, step_scope
from kerasdist.watchdog import Watchdog

WEIGHS_BY_ITSELF = (
    "The data holds sample weights, and this train step calls none of Keras' losses: kerasdist cannot see how it "
    "weighs samples. Each worker's gradient counts by its number of samples, which is right for a loss that is divided "
    "by that number, not by the sum of weights. Use a keras.losses.Loss, whose reduction kerasdist knows."
)


class Replica:
    """One rank's copy of a model.

    Args:
        model: The Keras model.
        group: The ranks that train it together.
        settings: How.
        owner: The door that attached it.
        shares_validation: Whether evaluation data is shared out, so that metric states add up. Otherwise every rank
            evaluates all of it, and the states must be equal.

    Attributes:
        ready: Whether the ranks were compared and hold one state.
        within_epoch: Whether metrics hold what this rank has seen of an epoch, which are not to be touched by an
            evaluation that a callback asks for.
        when_terminated: Called on all ranks where a SIGTERM ends an epoch, after its last step. Default: nothing.
    """

    def __init__(self, model: Any, group: Group, settings: Settings, owner: Any, shares_validation: bool) -> None:
        self.model = model
        self.group = group
        self.settings = settings
        self.owner = owner
        self.shares_validation = shares_validation
        self.ready = self.within_epoch = False
        self.when_terminated: Callable[[], None] | None = None
        self._alone = self._warned = False
        self._folded: set[int] = set()
        self.exchange = StepExchange(model, group)
        self._watchdog = Watchdog(model, group, settings.options)
        with tf.init_scope():
            self._last_rows = tf.Variable(1.0, trainable=False, dtype=tf.float64)
            self._rows_seen = tf.Variable(0.0, trainable=False, dtype=tf.float64)  # in this epoch
            self._evaluated = tf.Variable([0, 0], trainable=False, dtype=tf.int64)  # the stream's digest, samples
        methods: dict[str, Callable[..., Any]] = {
            "make_train_function": self.make_train_function,
            "train_step": self.train_step,
            "test_step": self.test_step,
            "evaluate": self.evaluate,
            keras_hooks.METRICS: self.metrics_or_logs,
        }
        keras_hooks.patch(model, methods, self)
        keras_hooks.trains_on_all_ranks(model)

    def __repr__(self) -> str:
        return f"Replica({self.model.name!r}, rank={self.group.rank})"

    @property
    def evaluating(self) -> bool:
        """Whether Keras evaluates just now."""
        return self.exchange.evaluating

    @evaluating.setter
    def evaluating(self, value: bool) -> None:
        self.exchange.evaluating = value

    # Steps ----------------------------------------------------------------------------------------------------------

    def train_step(self, data: Any) -> Any:
        """The model's own ``train_step``, its gradients weighted by this rank's samples."""
        batch = as_batch(data)
        own_step = keras_hooks.plain(self.model, "train_step")
        step = self.exchange.enter(batch)
        with (
            step_scope(step),
            synchronized(self.model, self.group, step),
            self._untouched_by(batch.may_be_empty),
            self._weighted(step),
        ):
            logs = own_step(batch.data)
        if self.group.size > 1 and not step.applied and self.model.trainable_variables:
            raise RuntimeError(
                f"rank {self.group.rank}: this train step updated nothing through an optimizer that averages, so the "
                "ranks would train apart. Apply `model.optimizer`, an optimizer that is an attribute of the model, or "
                "one from strategy.wrap_optimizer()."
            )
        if self.group.size > 1 and not step.losses and has_sample_weight(batch.data) and not self._warned:
            self._warned = True
            warnings.warn(WEIGHS_BY_ITSELF, stacklevel=2)
        self._last_rows.assign(tf.cast(batch.rows, tf.float64))
        with step.gated():
            self.owner.tally.count_step()
            self._rows_seen.assign_add(tf.cast(batch.rows, tf.float64))
        self.exchange.finish(step)
        return logs

    def test_step(self, data: Any) -> Any:
        """The model's own ``test_step``; a batch without samples changes no metric."""
        batch = as_batch(data)
        if isinstance(data, Batch):
            self.shares_validation = True
        with self._untouched_by(batch.may_be_empty), self._weighted(Step(batch.rows, batch.total)):
            logs = keras_hooks.plain(self.model, "test_step")(batch.data)
        self._note_stream(batch)
        self._last_rows.assign(tf.cast(batch.rows, tf.float64))
        self.exchange.note_evaluated()
        return logs

    def predict_step(self, data: Any) -> Any:
        """The model's own ``predict_step``, and how many of its rows count, and how many there are."""
        batch = as_batch(data)
        outputs = keras_hooks.plain(self.model, "predict_step")(batch.data)
        self._note_stream(batch)
        return outputs, tf.reshape(tf.stack([batch.rows, rows_of(batch.data)]), [1, 2])

    def _note_stream(self, batch: Batch) -> None:
        """Notes what stream is evaluated, and how many samples of it."""
        if batch.mark is not None:
            total = tf.cast(batch.total, tf.int64)
            self._evaluated.assign([batch.mark - 2 * total, self._evaluated[1] + total])

    def compare_evaluated(self, name: str) -> None:
        """Have all ranks evaluated the same data, all of it? Collective, where data was shared out."""
        digest, samples = self._evaluated.numpy().tolist()
        if digest:
            self._evaluated.assign([0, 0])
            compare_evaluated(digest + 2 * samples, self.group, name)

    @contextlib.contextmanager
    def _weighted(self, step: Step) -> Iterator[None]:
        """Each loss counts by the rank's share of the step; by its samples where the step's are not known."""
        rows, total = step.rows, step.total

        def share(dtype: Any) -> Any:
            own = tf.cast(rows, dtype)
            return own if total is None else tf.math.divide_no_nan(own, tf.cast(total, dtype))

        with contextlib.ExitStack() as stack:
            shared = self.group.size > 1 and total is not None
            stack.enter_context(keras_hooks.weighted_losses(self.model, share, own_means=shared))
            if shared:
                stack.enter_context(keras_hooks.corrected_losses(functools.partial(self._loss_factor, step)))
            yield

    def _loss_factor(self, step: Step, reduction: str, weights: Any, loss: Any) -> Any:
        """What turns a loss that is weighted by n/B into the rank's part of the one that one process computes.

        A sum counts as it is. A mean over valid entries, or by sample weights, counts by their share: V/sum(V).
        """
        step.losses += 1
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum"):
            return 1.0
        whole = tf.math.divide_no_nan(tf.cast(step.total, loss.dtype), tf.cast(step.rows, loss.dtype))
        if reduction == "sum":
            return whole
        if weights is None:
            return 1.0
        own = tf.reduce_sum(tf.cast(weights, tf.float64)) * tf.cast(step.rows > 0, tf.float64)
        with step.gated():
            every = self.group.all_reduce(own, "sum", f"loss{step.next_suffix('loss')}.weights")
        return whole * tf.cast(tf.math.divide_no_nan(own, every), loss.dtype)

    @contextlib.contextmanager
    def _untouched_by(self, may_be_empty: Any) -> Iterator[None]:
        """Takes back what a batch that counts nothing did to metrics, moving statistics and seeds.

        Synchronised statistics are those of all ranks, and stay.
        """
        if may_be_empty is None:
            yield
            return
        state = {id(v): v for v in [*self.model.non_trainable_variables, *self.model.metrics_variables]}
        for layer in keras_hooks.synchronized_normalizations(self.model):
            for variable in layer.non_trainable_variables:
                state.pop(id(variable), None)
        before = [(variable, tf.convert_to_tensor(variable.value)) for variable in state.values()]
        yield

        def take_back() -> int:
            for variable, value in before:
                variable.assign(value)
            return 0

        tf.cond(may_be_empty, take_back, lambda: 0)

    # The start of training ------------------------------------------------------------------------------------------

    def make_train_function(self, force: bool = False) -> None:
        """Keras' train function, which before its first step of a ``fit`` makes the ranks agree."""
        model = self.model
        if model.train_function is None or force:
            for applied in self._averaged():
                applied.forget()
        keras_hooks.plain(model, "make_train_function")(force=force)
        function = model.train_function
        if getattr(function, "prepares", None) is self:
            return

        def prepared(iterator: Any) -> Any:
            if not self.ready:
                self.prepare(getattr(iterator, "element_spec", None))
            logs = self.exchange.run(function, iterator)
            self._watchdog.after_step()
            return logs

        prepared.prepares = self  # type: ignore[attr-defined]
        model.train_function = prepared

    def distribute_optimizers(self) -> None:
        """Puts the averaging before the update of every optimizer of the model."""
        for optimizer in keras_hooks.own_optimizers(self.model):
            distribute_optimizer(optimizer, self.group, self.settings, self.owner)

    def prepare(self, spec: Any) -> None:
        """Builds what is not built, compares the ranks, and gives all of them rank 0's state. Collective."""
        model = self.model
        keras_hooks.build(model, spec.data if isinstance(spec, Batch) else spec)
        self.distribute_optimizers()
        self._check_loss()
        agree_on_names(self._averaged(), self.group)
        handshake.agree(handshake.signature(model, self.settings), self.group)
        handshake.warn_of_rates(model, self.group)
        optimizer_variables = [
            v for optimizer in keras_hooks.own_optimizers(model) for v in keras_hooks.state_of_all_ranks(optimizer)
        ]
        send_variables([*model.weights, *optimizer_variables], self.group)
        for applied in self._averaged():
            applied.start()
        self._fold_seeds()
        self.exchange.prepare()
        self.ready = True

    def align(self, get_spec: Callable[[], Any]) -> None:
        """Before ranks evaluate or predict together: makes sure that they hold one model. Collective."""
        model = self.model
        if self.group.size == 1:
            return
        if not keras_hooks.is_built(model):
            spec = get_spec()
            keras_hooks.build(model, spec.data if isinstance(spec, Batch) else spec)
        if self._same_weights():
            return
        self._average_variables(self._averaged())
        self._average_layer_state()
        if not self._same_weights():
            warnings.warn(
                "The ranks hold different weights; those of rank 0 are taken. (Were they set or loaded on one rank?)",
                stacklevel=3,
            )
            send_variables(list(model.weights), self.group)

    def _same_weights(self) -> bool:
        checksum = 1
        for value in keras_hooks.numpy_values(self.model.weights):
            checksum = zlib.adler32(np.ascontiguousarray(value).tobytes(), checksum)
        return len(set(gather_json(checksum, self.group, "weights"))) == 1

    def _check_loss(self) -> None:
        odd = [one for one in keras_hooks.loss_reductions(self.model) if one in (None, "none")]
        if odd and self.group.size > 1:
            raise ValueError(
                f"rank {self.group.rank}: a loss must be one number, so that its gradient can be averaged over the "
                "workers. Expected reduction='sum_over_batch_size', 'mean', 'mean_with_sample_weight' or 'sum'. "
                f"Received: {odd[0]!r}"
            )

    def _fold_seeds(self) -> None:
        """Makes each rank's random layers draw their own masks, reproducibly; rank 0's stay as they are."""
        for state in keras_hooks.seed_states(self.model):
            if id(state) not in self._folded and self.group.rank:
                state.assign(keras_hooks.folded_seed(keras_hooks.numpy_values([state])[0], self.group.rank))
            self._folded.add(id(state))

    # The end of an epoch --------------------------------------------------------------------------------------------

    def metrics_or_logs(self, logs: Any) -> Any:
        """Makes the metrics those of all ranks, then gives Keras' answer. Collective."""
        own = keras_hooks.plain(self.model, keras_hooks.METRICS)
        if self.group.size == 1 or self._alone:
            return own(logs)
        name = "val_loss" if self.evaluating else "loss"  # what one looks for where ranks wait at different places
        if self.evaluating:
            self.compare_evaluated(name)
        own_states = keras_hooks.numpy_values(self.model.metrics_variables)
        own_results = self.model.get_metrics_result()
        if self.evaluating and not self.shares_validation and not self._may_differ():
            check_equal_states(self.model, self.group, name)
        else:
            if not self.evaluating:
                terminated = self.exchange.leave()
                self.within_epoch = False
                if terminated:
                    self._end_by_sigterm(terminated)
                self._average_variables(self._averaged_at_epoch_end())
                self._average_layer_state()
            sum_states(self.model, self.group, name)
        answer = own(logs)
        if self.evaluating and self.within_epoch:
            self._take_back_metrics(own_states)
        if answer is logs:
            return mean_logs(self.model, logs, own_results, float(self._last_rows), self.group)
        return answer

    def _end_by_sigterm(self, ranks: list[int]) -> NoReturn:
        """Leaves ``fit`` on every rank, within an epoch: the hooks of its end would say that it was over."""
        if self.when_terminated is not None:
            self.when_terminated()
        steps, epoch = self.exchange.steps, self.exchange.epoch
        named = ", ".join(map(str, ranks))
        raise meeting.end_by_sigterm(f" to rank {named}: all ranks stopped after {steps} steps of epoch {epoch}.")

    def _take_back_metrics(self, own_states: list[Any]) -> None:
        """Gives the metrics this rank's part again: the epoch goes on with them, as in Keras, and then they add up."""
        if not self.shares_validation and self.group.rank:
            self.model.reset_metrics()  # each rank evaluated the whole, which counts once
            return
        for variable, value in zip(self.model.metrics_variables, own_states, strict=True):
            variable.assign(value)

    def _average_layer_state(self) -> None:
        samples = keras_hooks.samples_seen(self.model) or float(self._rows_seen)
        average_layer_state(self.model, self.group, samples)
        self._rows_seen.assign(0.0)

    def end_training(self) -> None:
        """At the end of ``fit`` what ranks updated alone becomes one, and they are compared. Collective."""
        self.within_epoch = False
        for applied in self._averaged_at_epoch_end():
            variables, state = applied.own_state()
            # Keras has just put the moving averages of the rank's own variables in place, where it keeps them.
            moved = variables if getattr(applied.optimizer, "use_ema", False) else []
            average_variables([*moved, *state], self.group, f"{applied.averager.name}.end")
        self._watchdog.at_end()

    def _averaged(self) -> list[DistributedApply]:
        found = [distributed_apply(optimizer) for optimizer in keras_hooks.own_optimizers(self.model)]
        return [applied for applied in found if applied is not None]

    def _averaged_at_epoch_end(self) -> list[DistributedApply]:
        return [applied for applied in self._averaged() if applied.algorithm.average_at_epoch_end]

    def _may_differ(self) -> bool:
        """Whether ranks hold different variables by design while they validate."""
        local = [applied for applied in self._averaged() if applied.algorithm.updates_locally]
        return any(not applied.algorithm.average_at_epoch_end for applied in local)

    def _average_variables(self, which: list[DistributedApply]) -> None:
        for applied in which:
            average_variables(applied.own_state()[0], self.group, f"{applied.averager.name}.epoch_end")

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``evaluate`` within a ``fit``, asked for by Keras or by a callback. Every rank must call it."""
        with self.evaluation():
            return keras_hooks.plain(self.model, "evaluate")(*args, **kwargs)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Marks what Keras does inside as evaluation."""
        before, self.evaluating = self.evaluating, True
        try:
            yield
        finally:
            self.evaluating = before

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, metrics are this rank's own, and nothing is collective."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before


def as_batch(data: Any) -> Batch:
    """The batch that kerasdist shared out, or the rank's own data as one whose total is not known."""
    return data if isinstance(data, Batch) else Batch(data, rows_of(data), None, None)


def has_sample_weight(data: Any) -> bool:
    """Whether a batch is (x, y, sample_weight)."""
    return isinstance(data, tuple) and len(data) == 3 and data[2] is not None


def no_xla(model: Any, asked: bool = True) -> bool:
    """Turns XLA off for the train step, and says so where the user asked for it; whether it was on."""
    was_on = keras_hooks.turn_off_xla(model)
    if was_on and asked:
        warnings.warn(
            "jit_compile was turned off: the collectives inside the train step have no XLA kernels.", stacklevel=3
        )
    return was_on
