"""Inference: batch workers with queue, results and predictor; the online server and its proxy."""
