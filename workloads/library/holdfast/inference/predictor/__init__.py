"""What computes, in a process of its own."""
