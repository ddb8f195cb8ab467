"""Where the time of a job went: event lines in, an account of every microsecond out."""
