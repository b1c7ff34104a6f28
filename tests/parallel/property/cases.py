"""What is drawn: a model, how it is compiled, its data, and how it is trained."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hypothesis import strategies as st

# Without the kink at 0 of relu: a layer that dies makes logits that tie but for rounding, and accuracy jumps.
ACTIVATIONS = ("linear", "tanh", "sigmoid", "gelu", "leaky_relu", "softplus")
REGULARIZERS = (None, None, "l1", "l2")
OPTIMIZERS = (
    "sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "nadam", "adamax", "rmsprop", "adagrad", "adadelta",
    "ftrl", "lamb", "lion",
)  # fmt: skip
# Left out: Adafactor and Muon divide gradients by their own size almost without an epsilon, so that a gradient which is
# 0 but for rounding becomes a step of full size.
CLIPPING = (None, "clipnorm", "clipvalue", "global_clipnorm")
SCHEDULES = (None, None, "exponential", "cosine", "steps")


@dataclasses.dataclass(frozen=True)
class Case:
    """One training. All is plain data, so that a case can be printed, sent and run again.

    Attributes:
        workers: N.
        door: ``scope`` or ``callback``.
        seed: Of weights, data and order.
        inputs: ``vector``, ``image`` or ``tokens``.
        layers: (kind, units, activation, regularizer) of each layer before the output.
        loss: ``mse`` or ``crossentropy``.
        optimizer: One of ``OPTIMIZERS``.
        clipping: The argument that clips, if any.
        schedule: The learning rate's schedule, if any.
        weight_decay: Whether weights decay.
        ema: None, or (use_ema's overwrite frequency or None,).
        accumulation: ``gradient_accumulation_steps``.
        loss_scale: Whether the optimizer stands in a ``LossScaleOptimizer``.
        data: ``arrays``, ``tf_data`` or ``py_dataset``.
        samples: Rows to train on.
        batch: B.
        uneven: Whether every other batch of a stream has one row only.
        weighted: Whether there is a sample_weight.
        shuffle: Whether the order changes.
        nan: Whether one row is NaN.
        held: Rows of validation data, 0 for none.
        shard_held: Whether the callback's validation data is shared out.
        evaluate: Whether ``evaluate`` follows.
        epochs: Of each fit.
        fits: How often ``fit`` is called.
        steps_per_execution: As in ``compile``.
        eager: ``run_eagerly``.
    """

    workers: int
    door: str
    seed: int
    inputs: str
    layers: tuple[tuple[Any, ...], ...]
    loss: str
    optimizer: str
    clipping: str | None
    schedule: str | None
    weight_decay: bool
    ema: tuple[int | None] | None
    accumulation: int | None
    loss_scale: bool
    data: str
    samples: int
    batch: int
    uneven: bool
    weighted: bool
    shuffle: bool
    nan: bool
    held: int
    shard_held: bool
    evaluate: bool
    epochs: int
    fits: int
    steps_per_execution: int
    eager: bool

    def to_json(self) -> str:
        """One line, for ``--case``."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Case:
        """The case of such a line."""
        fields = json.loads(line)
        fields["layers"] = tuple(tuple(layer) for layer in fields["layers"])
        fields["ema"] = fields["ema"] and tuple(fields["ema"])
        return cls(**fields)


def cases(workers: int | st.SearchStrategy[int]) -> st.SearchStrategy[Case]:
    """Cases on so many workers."""
    return _cases(st.just(workers) if isinstance(workers, int) else workers)


@st.composite
def _cases(draw: Any, workers: st.SearchStrategy[int]) -> Case:
    boolean = st.booleans()
    rarely = st.integers(0, 7).map(lambda number: number == 7)
    count = draw(workers)
    door = draw(st.sampled_from(("scope", "callback")))
    inputs = draw(st.sampled_from(("vector", "vector", "image", "tokens")))
    kind = draw(st.sampled_from(("arrays", "tf_data", "py_dataset")))
    batched = kind != "arrays"
    # Arrays with fewer rows than workers are refused; a stream may be as short as it likes.
    samples = draw(st.integers(1 if batched else count, 30))
    held = draw(st.one_of(st.just(0), st.integers(1, 9)))
    return Case(
        workers=count,
        door=door,
        seed=draw(st.integers(0, 999)),
        inputs=inputs,
        layers=draw(_layers(inputs)),
        loss=draw(st.sampled_from(("mse", "crossentropy"))),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        clipping=draw(st.sampled_from(CLIPPING)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        weight_decay=draw(boolean),
        ema=draw(st.sampled_from((None, None, None, (None,), (2,)))),
        accumulation=draw(st.sampled_from((None, None, 2, 3))),
        loss_scale=draw(rarely),
        data=kind,
        samples=samples,
        batch=draw(st.integers(1, 5)),
        uneven=batched and draw(boolean),
        weighted=draw(boolean),
        # shard() leaves a PyDataset in its order.
        shuffle=draw(boolean) and not (kind == "py_dataset" and door == "callback"),
        nan=inputs != "tokens" and draw(rarely),
        held=held,
        shard_held=door == "callback" and held >= count and draw(boolean),
        evaluate=draw(boolean) or not held,
        epochs=draw(st.integers(1, 3)),
        fits=2 if draw(rarely) else 1,
        steps_per_execution=2 if draw(rarely) else 1,
        eager=draw(rarely),
    )


@st.composite
def _layers(draw: Any, inputs: str) -> tuple[tuple[Any, ...], ...]:
    """Up to 3, of kinds that fit one another; the output is the fourth."""
    units, activation, regularizer = st.integers(2, 4), st.sampled_from(ACTIVATIONS), st.sampled_from(REGULARIZERS)
    dense = st.tuples(st.just("dense"), units, activation, regularizer)
    norm = st.tuples(st.just("norm"), st.none(), st.none(), st.none())
    first = {
        "image": st.tuples(st.just("conv"), units, activation, regularizer),
        # The regularizer makes the gradient dense. A sparse one is not equal to one process (docs/equal.md).
        "tokens": st.tuples(st.just("embedding"), units, st.none(), st.sampled_from(("l1", "l2"))),
    }
    head = [draw(first[inputs])] if inputs in first else []
    return (*head, *draw(st.lists(st.one_of(dense, norm), max_size=3 - len(head))))
