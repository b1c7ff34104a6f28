"""Names shared by the small cases and their tests (which start no engine)."""

OPTIMIZERS = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb",
    "Muon", "LossScaleOptimizer",
)  # fmt: skip
