"""Acts on jobs: moves them between Spot, flex-start and on-demand as priced, and writes the
receipts of those that end.
"""
