"""Entry point of the `palimpsest` command, which ends quietly on Ctrl-C from the first moment on.

It imports nothing else before that is so: loading the commands takes some tenths of a second.
"""

import os
import sys

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as shells have it: 128 and the signal's number."""

try:
    import signal
except KeyboardInterrupt:
    os._exit(INTERRUPTED)


def main() -> None:
    """Load the commands and run the one that was asked for."""
    # Left alone where Ctrl-C is ignored, as it is for a script's jobs in the background.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        # No exception: an import that it interrupts may turn it into an error of its own. Nothing is under way yet.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from cli.main import command  # noqa: PLC0415 - see above

    run = command()
    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
