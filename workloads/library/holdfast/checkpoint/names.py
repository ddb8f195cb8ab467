"""Names that no other writer will choose."""

import os


def random_hex(count: int) -> str:
    """`count` random bytes, as twice as many hex digits.

    Not `secrets.token_hex`: a file secrets.py beside the user's script is common, and would be imported instead.
    """
    return os.urandom(count).hex()
