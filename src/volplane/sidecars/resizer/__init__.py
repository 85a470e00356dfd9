"""csi-resizer: expands and modifies the volumes of claims. Run it with `service.run(client, settings)`.

Nothing is imported here: `volplane explain` uses the plan, also where there is no gRPC.
"""
