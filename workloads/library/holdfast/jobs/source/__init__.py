"""Packs the folder with the source code of a job."""
