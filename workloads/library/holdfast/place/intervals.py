"""95 % intervals of what a sample of runs shows: of a mean over its starts, and of a share.

Runs on recorded traces are not independent of each other: those that start on one recording meet the same outages. There
whole recordings are drawn anew, so that the doubt is that of so few recordings and not of so many starts.
"""

import math

import numpy as np

from holdfast.place.runs import Floats, Ints

Z = 1.959964
DRAWS = 400
Interval = tuple[float, float]


def of_mean(values: Floats, recording: Ints | None = None) -> Interval:
    """`recording`: of each value, where several were drawn from; a single value is exact."""
    # One run is no sample: on-demand without refusals is the same in every one.
    if len(values) == 1:
        return (float(values[0]), float(values[0]))
    if recording is not None and len(np.unique(recording)) > 1:
        return _drawn_anew(values, recording)
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return (mean - Z * error, mean + Z * error)


def of_share(hits: Floats, recording: Ints | None = None) -> Interval:
    """hits: 0 to 1, one a run. By Wilson: none of 2,000 late is no proof that none ever is."""
    if len(hits) == 1 or (recording is not None and len(np.unique(recording)) > 1):
        return of_mean(hits, recording)
    count, share, square = len(hits), float(hits.mean()), Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return (max(middle - half, 0.0), min(middle + half, 1.0))


def _drawn_anew(values: Floats, recording: Ints) -> Interval:
    _, of = np.unique(recording, return_inverse=True)
    sums, counts = np.bincount(of, values), np.bincount(of)
    # The same draws for every option: two of them stay comparable, and a second call gives the same interval.
    drawn = np.random.default_rng(0).integers(len(counts), size=(DRAWS, len(counts)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return (float(low), float(high))
