"""The parts of SPDY/3.1 that kubectl uses: exec, attach and port-forward up to 1.29, tunnels later.

Server and client over any stream of bytes:

    async with spdy.server(stream) as session:
        async for channel in session: …

There are no flow control windows, as in Kubernetes' own implementation; instead a session stops reading while
its channels hold too many unread bytes.
"""

from volplane.web.spdy.session import SpdyChannel, SpdySession, client, server

__all__ = ["SpdyChannel", "SpdySession", "client", "server"]
