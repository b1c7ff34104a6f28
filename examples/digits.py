"""Handwritten digits on all workers: the first thing to run.

make train                                              # two workers, everything set up
horovodrun -np 2 --gloo python examples/digits.py       # the same by hand
python examples/digits.py                               # one process, the same numbers
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import kerasdist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--global-batch", type=int, default=64, help="samples of all workers in a step")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--save", metavar="FILE.npz", help="write the final weights (rank 0)")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    strategy = kerasdist.DataParallelStrategy(compression=arguments.compression, global_batch=True)

    x, y = load_digits(return_X_y=True)  # 1,797 digits of 8x8 pixels, shipped with scikit-learn
    x = (x / 16).reshape(-1, 8, 8, 1).astype("float32")
    x_train, y_train, x_test, y_test = x[:1437], y[:1437], x[1437:], y[1437:]

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.002),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        x_train, y_train, batch_size=arguments.global_batch, epochs=arguments.epochs,
        validation_data=(x_test, y_test), verbose=2,
    )  # fmt: skip
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=arguments.global_batch, verbose=0)
    if strategy.rank == 0:
        print(f"{strategy.size} worker(s): accuracy on {len(x_test)} held-out digits {accuracy:.4f}, loss {loss:.4f}")
        if arguments.save:
            np.savez(arguments.save, *model.get_weights())


if __name__ == "__main__":
    main()
