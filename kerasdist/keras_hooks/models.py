"""A model's variables: are they there, how are they made, what are they for?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.keras_hooks.optimizers import build_optimizer, own_optimizers, state_of_all_ranks


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
