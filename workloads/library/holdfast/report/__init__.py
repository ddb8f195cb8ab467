"""One HTML file, or one JSON object, that answers whether the capacity paid off.

Order: the answer, objectives, money, training, batch, capacity, what to do next, method.
Guarantee: no external address, no script needed to read, what could not be read is listed.
"""
