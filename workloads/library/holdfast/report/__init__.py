"""Writes one HTML file, or one JSON object, that answers whether the capacity paid off.

The order is: answer, objectives, money, training, batch, capacity, next steps, method. The page
uses no external address and no script, and lists event lines that could not be read.
"""
