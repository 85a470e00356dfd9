"""CustomResourceDefinitions: kinds that clients define, served like the built-in ones.

`schema` applies a structural schema to plain data (prune, default, validate), `cel` evaluates its rules,
`custom` serves the objects of a defined kind, `definition` is the CustomResourceDefinition kind itself, and
`registration` watches the store and updates the registry. What is served depends only on the stored
definitions, never on the request that wrote them, so that several servers on one store agree.
"""
