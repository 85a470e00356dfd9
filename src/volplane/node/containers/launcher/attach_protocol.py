"""What is said between a container's shim and those who are attached to it; see `visitors`.

One packet a message: its first byte says what it is, as the channels of kubectl do.
"""

STDIN, STDOUT, STDERR, ATTACHED, RESIZE, END_INPUT = 0, 1, 2, 3, 4, 255
MAX_PACKET = 64 << 10
SOCKET_NAME = "attach"  # the socket, in the container's directory
SIZE_FORMAT = "!HH"  # of a terminal: width and height
