"""Rows that the tests of the estimator of scikit-learn share: as an array, and as frames of Polars and pandas."""

import numpy as np
import pandas as pd
import polars as pl

X = np.random.default_rng(0).normal(size=(300, 4)) + np.random.default_rng(1).integers(0, 3, size=(300, 1)) * 9.0
FRAME = pl.DataFrame(X, schema=["a", "b", "c", "d"])
PANDAS = pd.DataFrame(X, columns=FRAME.columns)
