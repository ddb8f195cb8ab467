"""Callbacks that bring the checkpoint library into trainers of others. Neither framework is a
dependency.
"""
