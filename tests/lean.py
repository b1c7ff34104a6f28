"""Imports Keras as if scikit-learn and matplotlib were not there, before a worker imports anything else.

Keras looks for both, which takes a third of a worker's start.
"""

import sys

_hidden = [name for name in ("matplotlib", "sklearn") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_hidden))
import keras  # noqa: E402, F401 (what follows comes after it)

for name in _hidden:
    del sys.modules[name]
