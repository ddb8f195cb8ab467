"""The router of text streams: a stream whose server is lost goes on at another one."""
