"""csi-attacher: attaches the volumes of VolumeAttachments. Run it with `service.run(client, settings)`.

Nothing is imported here: `volplane explain` uses the plan, also where there is no gRPC.
"""
