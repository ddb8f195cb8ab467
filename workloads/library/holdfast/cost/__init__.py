"""Computes prices, churn, the worth of Spot, and receipts."""
