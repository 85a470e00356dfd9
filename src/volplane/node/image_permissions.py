"""Authorization of built-in images that can do more than their container.

A SubjectAccessReview is created when a container starts: its service account needs the verb `use` on resource
`builtinimages` in API group `volplane.dev`, by the image's name. The resource is cluster-scoped, so a
RoleBinding in the pod's namespace does not count: these images are not limited to a namespace.
"""

from __future__ import annotations

from volplane.api.authorization import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from volplane.api.errors import APIError
from volplane.client.client import Client

VERB, RESOURCE, GROUP = "use", "builtinimages", "volplane.dev"


def service_account_user(namespace: str, account: str) -> tuple[str, tuple[str, ...]]:
    """User name and groups of a service account."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return f"system:serviceaccount:{namespace}:{account}", groups


class ImagePermissions:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def find_denial_reason(self, namespace: str, account: str, image: str) -> str:
        """Why the account may not use the image, "" if it may."""
        user, groups = service_account_user(namespace, account)
        attributes = ResourceAttributes(verb=VERB, group=GROUP, resource=RESOURCE, name=image)
        spec = SubjectAccessReviewSpec(resource_attributes=attributes, user=user, groups=groups)
        try:
            review = await self._client.create(SubjectAccessReview(spec=spec))
        except (APIError, TimeoutError) as error:
            return f'cannot check whether service account "{namespace}/{account}" may use "{image}": {error}'
        if review.status.allowed:
            return ""
        return (
            f'service account "{namespace}/{account}" may not use the built-in image "{image}": bind to '
            f'it, by a ClusterRoleBinding, a ClusterRole with verb "{VERB}" on resource "{RESOURCE}" in API '
            f'group "{GROUP}" with resourceName "{image}"'
        )
