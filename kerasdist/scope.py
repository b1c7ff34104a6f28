"""What a model made in ``strategy.scope()`` does for ``compile``, ``fit``, ``evaluate`` and ``predict``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist import data, keras_hooks
from kerasdist.callbacks import Agreement, Checkpoint, DistributedOptimizer
from kerasdist.callbacks.checkpoint import warn_if_it_begins_anew
from kerasdist.engine import meeting
from kerasdist.engine.meeting import gather_json
from kerasdist.errors import RankMismatchError
from kerasdist.optimizer import check_optimizer
from kerasdist.prediction import PredictionRows, whole
from kerasdist.replica import Replica, no_xla

HOOKED = ("compile", "fit", "predict", "predict_step", "make_predict_function", "train_on_batch")


class ScopedReplica(Replica):
    """A replica that shares out the data of ``fit``, ``evaluate`` and ``predict``.

    Args:
        model: The Keras model.
        group: The ranks that train it together.
        settings: How.
        owner: The strategy.
    """

    def __init__(self, model: Any, group: Any, settings: Any, owner: Any) -> None:
        super().__init__(model, group, settings, owner, shares_validation=True)
        self._prediction_rows = PredictionRows()
        keras_hooks.patch(model, {name: getattr(self, name) for name in HOOKED}, self)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Keras' ``compile``, then the averaging before the optimizer's updates."""
        optimizer = kwargs.get("optimizer", args[0] if args else None)
        if hasattr(optimizer, "apply_gradients") or hasattr(optimizer, "param_groups"):
            check_optimizer(optimizer)  # anything else is Keras' to judge, or an argument of a compile of one's own
        keras_hooks.plain(self.model, "compile")(*args, **kwargs)
        self.after_compile(asked_for_xla=kwargs.get("jit_compile") is True)

    def after_compile(self, asked_for_xla: bool = False) -> None:
        """What follows Keras' ``compile``."""
        if self.group.size > 1:
            no_xla(self.model, asked=asked_for_xla)
        self.distribute_optimizers()
        self.ready = False

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``fit`` on this rank's part of the data. Every rank must call it."""
        own = keras_hooks.plain(self.model, "fit")
        if self.owner.is_local:
            raise ValueError(f"rank {self.group.rank}: `fit` trains on all ranks together; call it outside of local().")
        with meeting.together(self.group, training=True):
            return self._fit(own, *args, **kwargs)

    def _fit(self, own: Any, *args: Any, **kwargs: Any) -> Any:
        call = keras_hooks.call_arguments("fit", args, kwargs)
        self._add_agreement(call)
        drawn, callbacks = self.owner.drawn_seed, keras_hooks.make_callback_list(call.get("callbacks"))[0]
        warn_if_it_begins_anew(call.get("callbacks"))
        if keras_hooks.user_seed() is None and any(isinstance(one, Checkpoint) for one in callbacks):
            drawn = gather_json(int(np.random.SeedSequence().generate_state(1)[0]), self.group, "order")[0]
        data.take_training_data(call, self.group, self.settings, drawn)
        validation, batch_size = call.get("validation_data"), call.pop("validation_batch_size", None)
        given = gather_json(validation is not None, self.group, "validation_data")
        if any(given) and not all(given):
            raise RankMismatchError(
                f"rank {self.group.rank}: `validation_data` was given on some ranks only. They validate together: give "
                f"it on all ranks or on none. Given, by rank: {given}"
            )
        if validation is not None:
            parts = keras_hooks.unpack_data(validation)
            call["validation_data"] = self._share(parts, batch_size, call.get("validation_steps"))
        self.ready = self.evaluating = False
        return own(**call)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``evaluate`` on this rank's part, and the metrics of all. Every rank must call it."""
        own = keras_hooks.plain(self.model, "evaluate")
        if kwargs.get("_use_cached_eval_dataset"):
            return own(*args, **kwargs)  # inside of fit, which shared the data out
        if self.owner.is_local:
            with self.alone():
                return own(*args, **kwargs)
        with meeting.together(self.group):
            return self._evaluate(own, *args, **kwargs)

    def _evaluate(self, own: Any, *args: Any, **kwargs: Any) -> Any:
        call = keras_hooks.call_arguments("evaluate", args, kwargs)
        parts = (call.pop("x", None), call.pop("y", None), call.pop("sample_weight", None))
        shared = self._share(parts, call.pop("batch_size", None), call.get("steps"))
        self.align(lambda: shared.get_tf_dataset().element_spec)
        with self.evaluation():
            return own(x=shared, **call)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``predict`` on this rank's part, and the outputs of all. Every rank must call it."""
        own = keras_hooks.plain(self.model, "predict")
        if self.owner.is_local or self.group.size == 1:
            return own(*args, **kwargs)
        with meeting.together(self.group):
            return self._predict(own, *args, **kwargs)

    def _predict(self, own: Any, *args: Any, **kwargs: Any) -> Any:
        call = keras_hooks.call_arguments("predict", args, kwargs)
        shared = self._share((call.pop("x", None), None, None), call.pop("batch_size", None), call.get("steps"))
        self.align(lambda: shared.get_tf_dataset().element_spec)
        with self._prediction_rows.noted() as rows:
            outputs = own(x=shared, **call)
        self.compare_evaluated("predict.data")
        return whole(outputs, rows, self.group, in_turn=self.settings.auto_shard)

    def make_predict_function(self, force: bool = False) -> None:
        """Keras' predict function, which gives Keras the outputs and notes the rows that count."""
        keras_hooks.plain(self.model, "make_predict_function")(force=force)
        self.model.predict_function = self._prediction_rows.taken_from(self.model.predict_function)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``train_on_batch`` on the rank's own batch. Every rank must call it."""
        if not self.ready:
            call = keras_hooks.call_arguments("train_on_batch", args, kwargs)
            batch = (call.get("x"), call.get("y"), call.get("sample_weight"))
            self.prepare(tf.nest.map_structure(_spec, batch))
        with meeting.together(self.group):
            return keras_hooks.plain(self.model, "train_on_batch")(*args, **kwargs)

    def _add_agreement(self, call: dict[str, Any]) -> None:
        callbacks, users_list = keras_hooks.make_callback_list(call.get("callbacks"))
        if any(isinstance(callback, DistributedOptimizer) for callback in callbacks):
            raise ValueError(
                f"rank {self.group.rank}: `callbacks` holds a DistributedOptimizer, but the model was made in the "
                "scope of a DataParallelStrategy, which averages already. Leave one of them out."
            )
        agreement = Agreement(self)
        if users_list is None:
            call["callbacks"] = [*callbacks, agreement]
        else:
            agreement.set_model(self.model)
            users_list.append(agreement)

    def _share(self, data_parts: tuple[Any, Any, Any], batch_size: Any, steps: Any) -> Any:
        x, y, weight = data_parts
        return data.share(x, y, weight, batch_size=batch_size, steps=steps, group=self.group, settings=self.settings)


def _spec(value: Any) -> Any:
    if value is None:
        return None
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
