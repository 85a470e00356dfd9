"""FlexVolume: volumes served by executables that answer each call with one JSON object.

Nothing is imported here: `explain` needs `attachment` and `options`, which work on any operating system.
"""
