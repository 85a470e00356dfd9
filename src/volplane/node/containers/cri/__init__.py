"""Containers of a CRI runtime such as containerd: images, pod sandboxes, containers, streams, logs."""
