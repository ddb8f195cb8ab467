"""Prices, churn, money and receipts."""
