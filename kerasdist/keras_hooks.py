"""The only module that leans on the internals of Keras and TensorFlow. `TESTED` says for which.

What it does to foreign objects: it sets methods on single instances (``patch``), surrounds ``fit`` where there are
several workers, and, on ranks other than 0, mutes the callbacks of Keras that write files and the saving of models that
trained on all ranks. Everything else reads.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import platform
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.legacy.saving import legacy_h5_format as _legacy_h5
from keras.src.losses import loss as _losses
from keras.src.saving import saving_lib as _saving_lib
from keras.src.trainers.data_adapters import get_data_adapter as _get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays as can_convert_arrays
from keras.src.trainers.data_adapters.array_slicing import train_validation_split as train_validation_split
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight as unpack_data
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.trainer import Trainer
from keras.src.utils.naming import to_snake_case
from tensorflow.python.eager import context as _tf_context

from kerasdist.functions import function_fact

__all__ = ["DataAdapter", "can_convert_arrays", "train_validation_split", "unpack_data"]

TESTED = {"Python": ((3, 11), (3, 13)), "TensorFlow": ((2, 20), (2, 21)), "Keras": ((3, 11), (3, 15))}
CLIP = "_clip_gradients"  # called between the accumulation and the update (base_optimizer.py)
METRICS = "_get_metrics_result_or_logs"  # called once at the end of an epoch and of an evaluation (trainer.py)
_OWNER = "_kerasdist_owner"
_HOOKS = "_kerasdist_hooks"


def check_backend() -> None:
    """Raises ValueError unless Keras runs on TensorFlow."""
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"kerasdist needs Keras' TensorFlow backend. Received: backend={backend!r}. Set KERAS_BACKEND=tensorflow "
            "before Keras is imported."
        )


def check_versions() -> None:
    """Warns if Python, TensorFlow or Keras is outside of the range that kerasdist is tested with."""
    running = {"Python": platform.python_version(), "TensorFlow": tf.__version__, "Keras": keras.__version__}
    for name, (low, high) in TESTED.items():
        version = tuple(int(part) for part in re.findall(r"\d+", running[name])[:2])
        if not low <= version <= high:
            span = f"{'.'.join(map(str, low))} to {'.'.join(map(str, high))}"
            warnings.warn(
                f"kerasdist is tested with {name} {span}. Running: {name} {running[name]}. Numbers may differ, or "
                "hooks into Keras fail; `kerasdist doctor` shows what works.",
                stacklevel=3,
            )


# Methods set on instances -------------------------------------------------------------------------------------------


def patch(target: Any, methods: dict[str, Callable[..., Any]], owner: Any) -> None:
    """Sets methods on one instance, past the attribute tracking of Keras, and remembers whose they are."""
    for name, method in methods.items():
        object.__setattr__(target, name, method)
    known = set(vars(target).get(_HOOKS, ())) | set(methods)
    object.__setattr__(target, _HOOKS, frozenset(known))
    object.__setattr__(target, _OWNER, owner)


def unpatch(target: Any) -> None:
    """Removes what ``patch`` set."""
    for name in (*vars(target).get(_HOOKS, ()), _HOOKS, _OWNER):
        if name in vars(target):
            object.__delattr__(target, name)


def patched_by(target: Any) -> Any:
    """The owner of the methods set on this instance, or None."""
    return vars(target).get(_OWNER)


def plain(target: Any, name: str) -> Callable[..., Any]:
    """The method that the instance's class gives it, whatever was set on the instance."""
    return functools.partial(getattr(type(target), name), target)


@contextlib.contextmanager
def observe_models(attach: Callable[[Any], Any]) -> Iterator[None]:
    """Calls ``attach(model)`` for models made or compiled inside, and ``after_compile()`` of what it returns."""
    made, compiled = TensorFlowTrainer.__init__, Trainer.compile

    def on_made(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        attach(self)

    @functools.wraps(compiled)
    def on_compiled(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = attach(self)
        compiled(self, *args, **kwargs)
        replica.after_compile(asked_for_xla=kwargs.get("jit_compile") is True)

    TensorFlowTrainer.__init__, Trainer.compile = on_made, on_compiled
    try:
        yield
    finally:
        TensorFlowTrainer.__init__, Trainer.compile = made, compiled


_surroundings: list[Callable[[Any, Any], contextlib.AbstractContextManager[Any]]] = []


def surround_fit(
    surroundings: Callable[[Any, Any], contextlib.AbstractContextManager[Any]] | None = None,
) -> None:
    """From now on each ``fit`` of this process runs inside of ``surroundings(model, callbacks)``, if any are given.

    Callbacks of a list that have a ``comes_last`` are moved behind the others, by its size. A callback with a method
    ``surround`` gives a context for the call, whose arguments it may change; after that, one with a method
    ``take_data`` is given the arguments, to put data of its own in the place of the user's.

    That holds for a call, too, whose arguments are just being made: in ``model.fit(x, callbacks=[Checkpoint(...)])``
    Python has looked up ``fit`` before. So what is replaced is the function inside of Keras' filter of tracebacks.
    """
    if surroundings is not None:
        _surroundings[:] = [surroundings]
    filtered = TensorFlowTrainer.fit
    if hasattr(filtered, "surrounded"):
        return
    own = filtered.__wrapped__
    (inside,) = [cell for cell in filtered.__closure__ if cell.cell_contents is own]

    @functools.wraps(own)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = call_arguments("fit", args, kwargs)
        callbacks, users_list = make_callback_list(call.get("callbacks"))
        if users_list is None:
            call["callbacks"] = sorted(callbacks, key=lambda callback: getattr(callback, "comes_last", 0))
        with contextlib.ExitStack() as stack:
            for around in _surroundings:
                stack.enter_context(around(self, call.get("callbacks")))
            callbacks = callbacks if users_list is None else users_list.callbacks
            for callback in callbacks:
                if isinstance(callback, type):
                    name = callback.__name__
                    raise TypeError(f"`callbacks` must hold objects. Received: the class {name}; write {name}().")
            for callback in callbacks:
                if hasattr(callback, "surround"):
                    stack.enter_context(callback.surround(self, call))
            for callback in callbacks:
                if hasattr(callback, "take_data"):
                    callback.take_data(call)
            return own(self, **call)

    inside.cell_contents = fit
    filtered.surrounded = True


def call_arguments(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of Keras' model methods, by name."""
    bound = inspect.signature(getattr(keras.Model, method)).bind(None, *args, **kwargs).arguments
    bound.pop("self")
    return {**bound, **bound.pop("kwargs", {})}


# Models and optimizers ----------------------------------------------------------------------------------------------


def clip_gradients(optimizer: Any, grads: list[Any]) -> Any:
    """Keras' own clipping, whatever hook stands before it."""
    return type(optimizer)._clip_gradients(optimizer, grads)


def scale_gradient(gradient: Any, factor: Any) -> Any:
    """A gradient, dense or ``tf.IndexedSlices``, times a scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def is_inside_a_loss_scale(optimizer: Any) -> bool:
    """Whether a ``LossScaleOptimizer`` around this optimizer is calling it just now."""
    frame = inspect.currentframe()
    for _ in range(40):
        if frame is None:
            return False
        caller = frame.f_locals.get("self")
        if getattr(caller, "inner_optimizer", None) is optimizer:
            return True
        frame = frame.f_back
    return False


def is_built(model: Any) -> bool:
    """Whether all variables of the model exist.

    A model without a ``call``, such as a GAN's, is built if its parts are.
    """
    without_call = type(model).call is keras.Model.call
    return all(layer.built for layer in model._flatten_layers(include_self=not without_call))


def build(model: Any, spec: Any) -> None:
    """Builds model, metrics and optimizer from the specification of a batch: what Keras expects, of TensorSpecs.

    Raises:
        ValueError: It cannot be built from that.
    """
    if not is_built(model):
        if spec is None:
            raise ValueError("The model is not built, and the data has no specification to build it from.")
        try:
            model._symbolic_build(data_batch=tf.nest.map_structure(_known_rank, spec))
        except RuntimeError as error:
            raise ValueError(str(error)) from error
    elif spec is not None:
        # TensorFlow traces a train step twice if its first trace makes variables. What fails here, Keras says better.
        with contextlib.suppress(ValueError):
            build_metrics(model, spec)
    _build_its_optimizer(model)


def _build_its_optimizer(model: Any) -> None:
    optimizer: Any = getattr(model, "optimizer", None)
    if optimizer is not None:
        build_optimizer(optimizer, model.trainable_variables)


def build_metrics(model: Any, spec: Any) -> None:
    """Makes the state of the compiled metrics, which Keras makes in the first step. ``spec`` as in ``build``.

    Raises:
        ValueError: It cannot be made from that.
    """
    compiled = [getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss")]
    if all(one is None or one.built for one in compiled):
        return
    if is_built(model):
        _build_its_optimizer(model)  # first, for Keras builds it here too, and names its state otherwise
    try:
        model._symbolic_build(data_batch=tf.nest.map_structure(_known_rank, spec))
    except Exception as error:  # whatever the model, or a metric of one's own, says of symbolic data
        raise ValueError(str(error)) from error


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the state of an optimizer, as Keras does at its first update."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)


def optimized_variables(optimizer: Any) -> list[Any]:
    """The variables that a built optimizer updates, in the order of their gradients."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def _known_rank(spec: Any) -> Any:
    if spec is not None and spec.shape.rank is None:
        raise ValueError(
            "The model is not built, and cannot be built from data of unknown rank. Build it before `fit`: give it "
            f"an Input, or call it on a batch. Received: {spec}"
        )
    return spec


def turn_off_xla(model: Any) -> bool:
    """Turns ``jit_compile`` off, for Horovod's operations have no XLA kernels; whether it was on."""
    was_on = bool(model.jit_compile)
    model.jit_compile = False
    return was_on


def loss_reductions(model: Any) -> list[str | None]:
    """The reductions of the compiled losses."""
    compiled = getattr(model, "_compile_loss", None)
    user_loss = getattr(compiled, "_user_loss", None)
    losses = [loss for loss in tf.nest.flatten(user_loss) if isinstance(loss, keras.losses.Loss)]
    return [loss.reduction for loss in losses]


def loss_facts(model: Any) -> list[Any]:
    """What the compiled losses are, as JSON values: class and options, or a function; and their weights."""
    compiled = getattr(model, "_compile_loss", None)
    facts: list[Any] = []
    for loss in tf.nest.flatten(getattr(compiled, "_user_loss", None)):
        if isinstance(loss, keras.losses.Loss):
            # Some of Keras' losses leave their own arguments out of their configuration.
            config = {**loss.get_config(), **getattr(loss, "_fn_kwargs", {})}
            facts.append([type(loss).__name__, {key: value for key, value in config.items() if key != "name"}])
        else:
            facts.append(loss if isinstance(loss, str) else function_fact(loss))
    return [facts, getattr(compiled, "_user_loss_weights", None)]


def layer_facts(model: Any) -> dict[str, Any]:
    """The options of the model's layers, as JSON values: without names and seeds, which ranks may have apart."""
    facts: dict[str, Any] = {}
    for position, layer in enumerate(model._flatten_layers()):
        kind = f"layer {position} {type(layer).__name__}"
        facts[kind] = True
        if isinstance(layer, keras.Model):
            continue  # its layers come by themselves
        try:
            options = _comparable(layer.get_config(), leave_out=("name", "seed", "trainable"))
        except Exception:  # a layer of one's own need not have one
            options = {}
        functions = {
            name: function_fact(value)
            for name, value in vars(layer).items()
            if isinstance(value, types.FunctionType) and not name.startswith("_") and not _of_keras(value)
        }
        facts |= {f"{kind} {name}": value for name, value in (options | functions).items()}
    return facts


def metric_facts(model: Any) -> Any:
    """What the compiled metrics are, in their order, as JSON values."""
    compiled = getattr(model, "_compile_metrics", None)

    def fact(metric: Any) -> Any:
        if isinstance(metric, keras.metrics.Metric):
            try:
                return [type(metric).__name__, _comparable(metric.get_config(), leave_out=("name",))]
            except Exception:  # as of layers
                return type(metric).__name__
        return _comparable(metric)

    given = [getattr(compiled, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    return keras.tree.map_structure(fact, given)


def _comparable(value: Any, leave_out: tuple[str, ...] = ()) -> Any:
    """A part of a configuration as a JSON value that is equal on ranks that configured alike."""
    if isinstance(value, dict) and value.get("class_name") == "__lambda__":
        return "a function"  # as an option of a layer it is compared by itself; what is here names its file
    if isinstance(value, dict):
        # Layers within layers: their names may be numbered. That of a dtype policy is all that it has.
        hidden = leave_out or (("name", "seed") if len(value) > 1 else ())
        return {str(key): _comparable(one) for key, one in value.items() if key not in hidden}
    if isinstance(value, (list, tuple)):
        return [_comparable(one) for one in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor, keras.Variable)):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"
    return function_fact(value)


def _of_keras(function: Any) -> bool:
    return str(function.__module__).startswith(("keras.", "tensorflow."))


def auto_named(model: Any) -> dict[str, str]:
    """Names of layers that Keras made up, such as ``dense_1``: each with its class, and the attribute that holds it."""
    layers = model._flatten_layers()
    held: dict[int, str] = {}
    for parent in layers:
        for name, value in vars(parent).items():
            if not name.startswith("_"):
                parts = value.items() if isinstance(value, dict) else ()
                held |= {id(value): name, **{id(part): f"{name}.{key}" for key, part in parts}}
    names = {}
    for layer in layers:
        base = to_snake_case(type(layer).__name__)
        if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
            place = held.get(id(layer))
            names[layer.name] = type(layer).__name__ + (f"[{place}]" if place else "")
    return names


def seed_states(model: Any) -> list[Any]:
    """The state variables of the model's random layers."""
    generators = [g for layer in model._flatten_layers() for g in getattr(layer, "_seed_generators", ())]
    return list({id(g.state): g.state for g in generators}.values())


def folded_seed(state: np.ndarray, rank: int) -> np.ndarray:
    """The state of rank 0's seed generator as that of another rank, which draws its own masks, reproducibly."""
    seed, counter = (int(value) for value in state)
    return np.array([(seed + 1_000_003 * rank) % 2**31 if rank else seed, counter], state.dtype)


def own_optimizers(model: Any) -> list[Any]:
    """Every optimizer that is an attribute of the model, or stands in a list, tuple or dict that is one."""
    found: dict[int, Any] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, keras.optimizers.Optimizer):
            found[id(value)] = value
        elif depth and isinstance(value, (list, tuple, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                look(part, depth - 1)

    for name, value in vars(model).items():
        look(value, 0 if name.startswith("_") else 2)
    return list(found.values())


def state_of_all_ranks(optimizer: Any) -> list[Any]:
    """The optimizer's variables without its accumulated gradients, of which each rank holds its own share."""
    shares = {id(variable) for variable in accumulated_gradients(optimizer)}
    return [variable for variable in optimizer.variables if id(variable) not in shares]


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """What ``gradient_accumulation_steps`` adds up."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "_accumulated_gradients", None) or ())


def rate_variable(optimizer: Any) -> Any:
    """The learning rate as a variable; None where a schedule gives it."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None


def floating_state(optimizer: Any) -> list[Any]:
    """What an optimizer keeps of past gradients and variables: not its rate, counter or accumulated gradients."""
    rate = rate_variable(optimizer)
    state = [variable for variable in state_of_all_ranks(optimizer) if variable is not rate]
    return [variable for variable in state if tf.as_dtype(variable.dtype).is_floating]


def initial_epoch(model: Any) -> int | None:
    """The epoch that ``BackupAndRestore`` asks ``fit`` to start from."""
    return model._initial_epoch


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Sets the epoch that ``fit`` starts from."""
    model._initial_epoch = epoch


def make_callback_list(callbacks: Any) -> tuple[list[Any], Any]:
    """Splits the ``callbacks`` argument of ``fit`` into a list and the user's own CallbackList, if any."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return [], callbacks
    return list(tf.nest.flatten(callbacks)) if callbacks is not None else [], None


# Data ---------------------------------------------------------------------------------------------------------------


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


@contextlib.contextmanager
def logs_without_steps(model: Any) -> Iterator[None]:
    """Inside, an epoch in which no step is left to take has the logs of the metrics' state."""
    own, before = getattr(model, METRICS), vars(model).get(METRICS)

    def answer(logs: Any) -> Any:
        return own(logs or dict.fromkeys(model.get_metrics_result()))

    object.__setattr__(model, METRICS, answer)
    try:
        yield
    finally:
        if vars(model).get(METRICS) is answer:  # else a door has taken its own off, and this one with it
            object.__delattr__(model, METRICS)
            if before is not None:
                object.__setattr__(model, METRICS, before)


# Seeds --------------------------------------------------------------------------------------------------------------


def user_seed() -> int | None:
    """The seed that the user set for TensorFlow or Keras, or None."""
    seed = _tf_context.global_seed()
    return int(seed) if seed is not None else None


# Ranks other than 0 -------------------------------------------------------------------------------------------------

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


def numpy_values(variables: list[Any]) -> list[np.ndarray]:
    """The variables' values on the host."""
    return [np.asarray(variable) for variable in variables]


def layer_state(model: Any) -> list[Any]:
    """Floating variables that layers made untrainable: moving statistics and their kind, not what was frozen."""
    variables = [v for layer in model._flatten_layers() for v in layer._non_trainable_variables]
    return list({id(v): v for v in variables if tf.as_dtype(v.dtype).is_floating}.values())


def replicated_variables(model: Any) -> list[Any]:
    """What all ranks hold alike between steps: not the state of layers, nor gradients that are being accumulated."""
    own = {id(variable) for variable in layer_state(model)}
    variables = [*model.weights, *(v for one in own_optimizers(model) for v in state_of_all_ranks(one))]
    return list({id(v): v for v in variables if id(v) not in own}.values())


def synchronized_normalizations(model: Any) -> list[Any]:
    """The ``BatchNormalization(synchronized=True)`` layers of a model, in the same order on every rank."""
    normalizing = keras.layers.BatchNormalization
    return [layer for layer in model._flatten_layers() if isinstance(layer, normalizing) and layer.synchronized]


@contextlib.contextmanager
def moments_from(layers: list[Any], moments: Callable[[int, Any, list[int], Any], tuple[Any, Any]]) -> Iterator[None]:
    """Inside, normalisations take a batch's mean and variance from ``moments(position, inputs, axes, mask)``.

    The mask is None or of the shape of the inputs.
    """

    def replacement(position: int, layer: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        def batch_moments(inputs: Any, mask: Any) -> tuple[Any, Any]:
            if mask is not None:
                mask = tf.cast(mask, tf.bool)[..., None] & tf.ones_like(inputs, tf.bool)
            return moments(position, inputs, layer._reduction_axes, mask)

        return batch_moments

    with contextlib.ExitStack() as stack:
        for position, layer in enumerate(layers):
            if "_moments" in vars(layer):  # one train step inside another
                stack.callback(object.__setattr__, layer, "_moments", layer._moments)
            else:
                stack.callback(object.__delattr__, layer, "_moments")
            object.__setattr__(layer, "_moments", replacement(position, layer))
        yield


def metrics_of_ones_own(model: Any) -> list[str]:
    """Names of the model's metrics whose class is not Keras' and does not declare ``additive_state = True``."""
    found = []
    for metric in model.metrics:
        for one in getattr(metric, "metrics", None) or [metric]:
            if not type(one).__module__.startswith("keras.") and not getattr(one, "additive_state", False):
                found.append(one.name)
    return found


@contextlib.contextmanager
def corrected_losses(factor: Callable[[str, Any, Any], Any]) -> Iterator[None]:
    """Inside, each loss that Keras reduces to a number is multiplied by ``factor(reduction, weights, loss)``.

    ``weights`` are those whose sum the loss was divided by: the valid entries of a mask, or sample weights under
    ``"mean_with_sample_weight"``; None where it was divided by the number of entries, or not at all.
    """
    own = _losses.reduce_weighted_values

    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = own(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if reduction == "mean_with_sample_weight":
            weights = _losses.apply_mask(sample_weight, mask, dtype=loss.dtype, reduction=reduction)
        else:
            weights = mask if reduction in ("sum_over_batch_size", "mean") else None
        if tuple(loss.shape) == (0,):  # as Keras leaves it, outside of graphs, where a batch has no samples
            loss = tf.reduce_sum(loss)
        return loss * factor(reduction, weights, loss)

    _losses.reduce_weighted_values = reduced
    try:
        yield
    finally:
        _losses.reduce_weighted_values = own


@contextlib.contextmanager
def weighted_losses(model: Any, weight: Callable[[Any], Any], own_means: bool) -> Iterator[None]:
    """Inside, what tracks a batch's loss takes ``weight(dtype)``; Keras counts each batch as one.

    That are the trackers of each output's loss, and with ``own_means`` also a model's own ``keras.metrics.Mean`` where
    it is given one number without a weight, as in a train step of one's own.
    """
    outputs = list(getattr(getattr(model, "_compile_loss", None), "metrics", ()))
    means = [metric for metric in model.metrics if type(metric) is keras.metrics.Mean] if own_means else []
    trackers = list({id(tracker): tracker for tracker in (*outputs, *means)}.values())
    for tracker in trackers:

        def update_state(value: Any, sample_weight: Any = None, tracker: Any = tracker) -> Any:
            if any(tracker is one for one in outputs) or (sample_weight is None and len(np.shape(value)) == 0):
                sample_weight = weight(tracker.dtype)
            return type(tracker).update_state(tracker, value, sample_weight=sample_weight)

        object.__setattr__(tracker, "update_state", update_state)
    try:
        yield
    finally:
        for tracker in trackers:
            object.__delattr__(tracker, "update_state")


def samples_seen(model: Any) -> float:
    """The weight that the model's loss tracker holds: this rank's samples of the epoch; 0 without one."""
    tracker = getattr(model, "_loss_tracker", None)
    return float(tracker.count) if tracker is not None else 0.0
