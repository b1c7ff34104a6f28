"""Each step begins with one small exchange: who takes part, how many samples there are, and does anyone stop?

It travels beside the forward pass. Only what comes after the gradients waits for it: collectives and updates stand
behind a gate, an operation that fails on all ranks alike if one of them is somewhere else. Then no rank applies the
step, and each learns why.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.data.check import different_streams, same_stream
from kerasdist.data.shared import leaves
from kerasdist.engine import Group, meeting
from kerasdist.step import Batch, Step

MARKED_STEPS = 3
SAME_DATA = (
    "All ranks train on the same batches: {workers} workers compute the same gradients, and the job is no faster than "
    "one. Share the data out with kerasdist.shard(...), or give each rank its own part."
)


class StepExchange:
    """The exchange of one model's train steps, on one rank.

    Args:
        model: The Keras model.
        group: The ranks that train it together.
    """

    def __init__(self, model: Any, group: Group) -> None:
        self.model = model
        self.group = group
        self.epoch = self.steps = 0
        self._evaluating = False
        self._alike = self._evaluated_before = 0
        self._watch: meeting.Watch | None = None
        self._quiet = contextlib.ExitStack()
        self._kept: dict[int, tuple[Any, tf.Variable]] = {}
        with tf.init_scope():
            self._table = tf.Variable(tf.zeros([group.size, 3], tf.int64), trainable=False)
            self._begun = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._done = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._evaluated = tf.Variable(0, trainable=False, dtype=tf.int64)

    # Inside of the train step ---------------------------------------------------------------------------------------

    def enter(self, batch: Batch) -> Step:
        """Begins a step. Every rank must call it, or be in another exchange."""
        rows = batch.rows
        if self.group.size == 1:
            return Step(rows, rows if batch.total is None else batch.total)
        self._keep_state()
        mark = batch.mark
        if mark is None:
            mark = tf.constant(1, tf.int64) if batch.total is not None else _mark(batch.data)
        # After the data, which may fail; the number of samples may be known before it.
        with tf.control_dependencies([leaf for leaf in leaves(batch.data) if isinstance(leaf, tf.Tensor)]):
            row = tf.stack([tf.constant(meeting.STEP, tf.int64), tf.cast(rows, tf.int64), mark])
        table = self.group.exchange(row)
        counted = tf.reduce_sum(table[:, 1])
        all_here = tf.reduce_all(tf.equal(table[:, 0], meeting.STEP))
        if batch.total is None:  # a step without samples is how the end of own data of unknown length is seen
            all_here = tf.logical_and(all_here, counted > 0)
        with tf.control_dependencies([self._table.assign(table)]):
            begun = self._begun.assign_add(1)
        with tf.control_dependencies([begun]):
            gate = tf.debugging.Assert(
                all_here & same_stream(table[:, 2]), ["kerasdist: not all ranks take part in this step"]
            )
        return Step(rows, counted if batch.total is None else batch.total, gate)

    def finish(self, step: Step) -> None:
        """Ends a step."""
        if self.group.size == 1:
            return
        here = [t for t in step.reduced if tf.executing_eagerly() or t.graph is tf.compat.v1.get_default_graph()]
        # The gate too: a pass that only accumulates reduces nothing, or inside of a conditional.
        with tf.control_dependencies(None if tf.executing_eagerly() else [step.gate, *here]):
            self._done.assign_add(1)

    def note_evaluated(self) -> None:
        """A batch was evaluated."""
        if self.group.size > 1:
            self._evaluated.assign_add(1)

    def _keep_state(self) -> None:
        """Copies what a step changes before its gate: small, for a step that is not applied."""
        for variable, kept in self._kept.values():
            kept.assign(variable.value)

    # Around the train function --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Makes room for the copies of what a step changes before its gate. Before the train step is traced."""
        changing = [*keras_hooks.layer_state(self.model), *keras_hooks.seed_states(self.model)]
        for variable in [*self.model.metrics_variables, *changing]:
            if id(variable) not in self._kept:
                value = keras_hooks.numpy_values([variable])[0]
                self._kept[id(variable)] = variable, tf.Variable(value, trainable=False)

    def run(self, function: Callable[[Any], Any], iterator: Any) -> Any:
        """Runs Keras' train function; ends the epoch where all ranks agree to, fails where one failed."""
        if self.group.size == 1:
            return function(iterator)
        if meeting.terminating():
            self._stop()
        if self._watch is None or self._watch.closed:
            self._watch = meeting.Watch(self.group, self._progress, self._evaluated.numpy, self.where)
        self._watch.enter()
        try:
            logs = function(iterator)
        except Exception as error:
            self._explain(error)
            raise
        finally:
            self._watch.leave()
        self.steps += 1
        if self.steps <= MARKED_STEPS:
            self._look_for_same_data()
        return logs

    @property
    def evaluating(self) -> bool:
        """Whether Keras evaluates just now."""
        return self._evaluating

    @evaluating.setter
    def evaluating(self, value: bool) -> None:
        if value and not self._evaluating:
            self._evaluated_before = int(self._evaluated.numpy())
        self._evaluating = value

    def where(self) -> str:
        """Where this rank stands, for messages."""
        begun, done = self._progress()
        place = f"training step {self.steps} of epoch {self.epoch}"
        if self.evaluating:
            batch = int(self._evaluated.numpy()) - self._evaluated_before
            return f"batch {batch} of an evaluation before {place}"
        if begun == done:
            return place
        paths = [variable.path for variable in self.model.trainable_variables]
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        return f"{place}, waiting for the mean gradients of {', '.join(paths[:3])}{more}"

    def leave(self) -> list[int]:
        """The epoch has ended on this rank: returns when it has on all, with the ranks that got SIGTERM. Collective."""
        self._quiet.close()
        point = meeting.STOPPED if self.model.stop_training else meeting.EPOCH_END
        if meeting.terminating():
            point = meeting.TERMINATED
        where = f"the end of epoch {self.epoch}, after {self.steps} steps"
        points = meeting.leave_epoch(self.group, point, where)
        return [rank for rank, point in enumerate(points) if point == meeting.TERMINATED]

    def close(self) -> None:
        """Nothing is trained any more."""
        self._quiet.close()
        if self._watch is not None:
            self._watch.close()

    def _progress(self) -> tuple[int, int]:
        return int(self._begun.numpy()), int(self._done.numpy())

    def _explain(self, error: Exception) -> None:
        """Raises what is behind an error of the train function; returns if it is the error itself."""
        if self.group.was_cut_off(error):
            raise meeting.cut_off(self.group, self.where()) from None
        begun, done = self._progress()
        if begun == done:
            return  # before the exchange: the end of the data, or its failure, which the others will learn
        self._done.assign(begun)
        table = self._table.numpy()
        points, rows, marks = table[:, 0].tolist(), table[:, 1], table[:, 2]
        same = bool(same_stream(tf.constant(marks)).numpy())
        ended = rows.sum() == 0 and marks[0] % 2 == 0  # own data
        if all(point == meeting.STEP for point in points) and same and not ended:
            meeting.known_to_all(error)  # the others wait for gradients, not for words
            return
        for variable, kept in self._kept.values():
            variable.assign(kept.value())
        if ended and all(point == meeting.STEP for point in points):
            raise StopIteration  # no rank has samples left
        if all(point == meeting.STEP for point in points):
            raise different_streams(int(marks[self.group.rank]), self.group, "a global batch") from None
        if all(point in (*meeting.LEAVING, meeting.STEP) for point in points) and (
            meeting.STOPPED in points or meeting.TERMINATED in points
        ):
            self._stop()
        raise meeting.disagreement(self.group, points, self.where()) from None

    def _stop(self) -> None:
        """Leaves the epoch as if the data had ended, without Keras' warning that it was too short."""
        self.model.stop_training = True
        self._quiet.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        raise StopIteration

    def _look_for_same_data(self) -> None:
        marks = self._table.numpy()[:, 2]
        own_data = marks[0] != 0 and marks[0] % 2 == 0
        self._alike = self._alike + 1 if own_data and (marks == marks[0]).all() else 0
        if self._alike == MARKED_STEPS:
            warnings.warn(SAME_DATA.format(workers=self.group.size), stacklevel=4)


def _mark(data: Any) -> Any:
    """An even number that tells batches apart: made of their first rows; 0 where there is none to make."""
    dense = [leaf for leaf in leaves(data) if isinstance(leaf, tf.Tensor)]
    numeric = [leaf for leaf in dense if leaf.dtype.is_floating or leaf.dtype.is_integer]
    firsts = [tf.reshape(tf.cast(leaf[:1], tf.float64), [-1]) for leaf in numeric if leaf.shape.rank]
    if not firsts:
        return tf.constant(0, tf.int64)
    row = tf.concat(firsts, axis=0)
    places = tf.range(1.0, tf.cast(tf.size(row), tf.float64) + 1.0, dtype=tf.float64)
    return 2 * (tf.bitcast(1.0 + tf.reduce_sum(row * tf.sqrt(places)), tf.int64) // 2)
