"""SPDY/3.1 as far as kubectl speaks it: exec, attach and port-forward of clients up to 1.29, tunnels of later
ones.

Over any stream of bytes, both ends:

    async with spdy.server(stream) as session:
        async for channel in session: …

Flow control windows are left out, as on the other side of this wire; instead a session stops reading while
what its channels hold unread is over a bound.
"""

from volplane.web.spdy.session import SpdyChannel, SpdySession, client, server

__all__ = ["SpdyChannel", "SpdySession", "client", "server"]
