"""Tools that every room uses: errors, values, tables, progress, retries, command line."""
