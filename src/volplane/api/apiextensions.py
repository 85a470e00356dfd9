"""apiextensions.k8s.io/v1: CustomResourceDefinition."""

from collections.abc import Mapping
from typing import Annotated, Any

from volplane.api.meta import Resource
from volplane.api.object import Number, Object, Time, field, map_list, merge, no_omitempty


class CustomResourceDefinitionNames(Object):
    plural: str = no_omitempty(factory=str)
    singular: str = ""
    short_names: tuple[str, ...] = ()
    kind: str = no_omitempty(factory=str)
    list_kind: str = ""
    categories: tuple[str, ...] = ()


class ExternalDocumentation(Object):
    description: str = ""
    url: str = ""


class ValidationRule(Object):
    rule: str = no_omitempty(factory=str)
    message: str = ""
    message_expression: str = ""
    reason: str | None = None
    field_path: str = ""
    optional_old_self: bool | None = None


class JSONSchemaProps(Object):
    id: str = ""
    schema_: str = field(name="$schema", default="")
    ref: str | None = field(name="$ref", default=None)
    description: str = ""
    type: str = ""
    format: str = ""
    title: str = ""
    default: Any = None
    maximum: Number | None = None
    exclusive_maximum: bool = False
    minimum: Number | None = None
    exclusive_minimum: bool = False
    max_length: int | None = None
    min_length: int | None = None
    pattern: str = ""
    max_items: int | None = None
    min_items: int | None = None
    unique_items: bool = False
    multiple_of: Number | None = None
    enum: tuple[Any, ...] = ()
    max_properties: int | None = None
    min_properties: int | None = None
    required: tuple[str, ...] = ()
    items: Any = None
    all_of: tuple["JSONSchemaProps", ...] = ()
    one_of: tuple["JSONSchemaProps", ...] = ()
    any_of: tuple["JSONSchemaProps", ...] = ()
    not_: "JSONSchemaProps | None" = field(name="not", default=None)
    properties: Mapping[str, "JSONSchemaProps"] = {}
    additional_properties: Any = None
    pattern_properties: Mapping[str, "JSONSchemaProps"] = {}
    dependencies: Mapping[str, Any] = {}
    additional_items: Any = None
    definitions: Mapping[str, "JSONSchemaProps"] = {}
    external_docs: ExternalDocumentation | None = None
    example: Any = None
    nullable: bool = False
    x_preserve_unknown_fields: bool | None = field(name="x-kubernetes-preserve-unknown-fields", default=None)
    x_embedded_resource: bool = field(name="x-kubernetes-embedded-resource", default=False)
    x_int_or_string: bool = field(name="x-kubernetes-int-or-string", default=False)
    x_list_map_keys: tuple[str, ...] = field(name="x-kubernetes-list-map-keys", default=())
    x_list_type: str | None = field(name="x-kubernetes-list-type", default=None)
    x_map_type: str | None = field(name="x-kubernetes-map-type", default=None)
    x_validations: Annotated[tuple[ValidationRule, ...], merge("rule")] = field(
        name="x-kubernetes-validations", default=()
    )


class CustomResourceValidation(Object):
    open_apiv3_schema: JSONSchemaProps | None = field(name="openAPIV3Schema", default=None)


class CustomResourceSubresourceStatus(Object):
    pass


class CustomResourceSubresourceScale(Object):
    spec_replicas_path: str = no_omitempty(factory=str)
    status_replicas_path: str = no_omitempty(factory=str)
    label_selector_path: str | None = None


class CustomResourceSubresources(Object):
    status: CustomResourceSubresourceStatus | None = None
    scale: CustomResourceSubresourceScale | None = None


class CustomResourceColumnDefinition(Object):
    name: str = no_omitempty(factory=str)
    type: str = no_omitempty(factory=str)
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = no_omitempty(factory=str)


class SelectableField(Object):
    json_path: str = no_omitempty(factory=str)


class CustomResourceDefinitionVersion(Object):
    name: str = no_omitempty(factory=str)
    served: bool = no_omitempty(factory=bool)
    storage: bool = no_omitempty(factory=bool)
    deprecated: bool = False
    deprecation_warning: str | None = None
    schema: CustomResourceValidation | None = None
    subresources: CustomResourceSubresources | None = None
    additional_printer_columns: tuple[CustomResourceColumnDefinition, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class ServiceReference(Object):
    namespace: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)
    path: str | None = None
    port: int | None = None


class WebhookClientConfig(Object):
    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: bytes = b""


class WebhookConversion(Object):
    client_config: WebhookClientConfig | None = None
    conversion_review_versions: tuple[str, ...] = no_omitempty(factory=tuple)


class CustomResourceConversion(Object):
    strategy: str = no_omitempty(factory=str)
    webhook: WebhookConversion | None = None


class CustomResourceDefinitionSpec(Object):
    group: str = no_omitempty(factory=str)
    names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    scope: str = no_omitempty(factory=str)
    versions: tuple[CustomResourceDefinitionVersion, ...] = no_omitempty(factory=tuple)
    conversion: CustomResourceConversion | None = None
    preserve_unknown_fields: bool = False


class CustomResourceDefinitionCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class CustomResourceDefinitionStatus(Object):
    conditions: Annotated[tuple[CustomResourceDefinitionCondition, ...], map_list("type")] = no_omitempty(
        factory=tuple
    )
    accepted_names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    stored_versions: tuple[str, ...] = no_omitempty(factory=tuple)
    observed_generation: int = 0


class CustomResourceDefinition(Resource):
    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
