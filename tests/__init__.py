"""Tests mirror the tree; tiers that cost more are directories: plan/ cluster/ node/ gpu/ cloud/
bench/.
"""
