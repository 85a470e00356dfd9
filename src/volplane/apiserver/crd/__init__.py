"""CustomResourceDefinitions: kinds that clients define, served like the built-in ones.

`schema` is what a structural schema does to plain data (prune, default, validate), `cel` evaluates its
rules, `custom` serves the objects of one defined kind, `definition` is the CustomResourceDefinition kind
itself, and `keeper` follows the store and keeps the registry in step. The subtle thing: what is served is
decided by the stored definitions alone, never by the request that wrote them, so two servers over one store
agree.
"""
