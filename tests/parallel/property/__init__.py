"""A property: whatever is drawn, N workers with batch B give the numbers of one process with batch N B.

``cases`` says what can be drawn, ``data`` and ``training`` are plain Keras, ``worker`` runs one case after another in
groups of real workers, ``pool`` keeps those groups and compares. ``python -m tests.parallel.property --help``.
"""
