"""FlexVolume attachments: call the drivers for VolumeAttachments."""
