"""What capacity costs, and the receipt of a job."""
