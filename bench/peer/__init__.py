"""One program a peer: `on_NAME.py URL JOBS` enqueues and drains, and prints one line of JSON.

They run in the peer's own environment, so they import nothing of relevo. Each uses its peer as its
documentation says, in one worker process, with the options that make it fast and still at least
once: what is acknowledged only after the work, and kept in the server until then.
"""
