"""How weights become codes: pure functions of (weight, statistics, options).

Callers hand in the rows of one task, never counting on all rows of a linear being there.
Shapes: O = out features (rows), I = in features, G = groups of a row, N = calibration rows.
"""
