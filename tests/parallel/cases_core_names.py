"""Names shared by the small cases and their tests (which start no engine)."""

from importlib.metadata import version

OPTIMIZERS = [
    "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb",
    "LossScaleOptimizer",
]  # fmt: skip
if not version("keras").startswith(("3.11.", "3.12.")):
    OPTIMIZERS.append("Muon")  # that of Keras 3.11 and 3.12 fails on TensorFlow, without kerasdist too
