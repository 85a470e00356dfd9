"""Messages between a container's shim and attached clients; see `attach_server`.

One packet a message. The first byte is the channel, with kubectl's numbers where kubectl has one.
"""

STDIN, STDOUT, STDERR, ATTACHED, RESIZE, END_INPUT = 0, 1, 2, 3, 4, 255
MAX_PACKET = 64 << 10
SOCKET_NAME = "attach"  # the socket, in the container's directory
SIZE_FORMAT = "!HH"  # of a terminal: width and height
