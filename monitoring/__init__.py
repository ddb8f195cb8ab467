"""What watches: alerts, dashboard, ledger, exporter, report."""
