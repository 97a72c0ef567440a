"""What a data scientist types: `ehrsequencing.load`, `prepare`, `fit`, `evaluate`, `score`, frames and plots.

`frames` (tables in and out), `loaded` (a run), `study` (prepare and fit), `evaluated` (an evaluation), `plots`,
`estimator` (for scikit-learn's users). `ehrsequencing/__init__.py` has the public names.
"""
