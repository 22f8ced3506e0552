"""What ends hosted code whose section does not go on."""


class Unwound(BaseException):
    """Ends hosted code: its section is suspended, cancelled, or lost. Not an Exception: it must not be swallowed."""
