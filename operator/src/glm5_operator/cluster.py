"""The one door to the API server."""

import datetime
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .api import names
from .metrics import Metrics

Object = dict[str, Any]

FIELD_MANAGER = names.MANAGED_BY

_EVENT_NAME_DIGITS = 16


@dataclass(frozen=True)
class Resource:
    """Where the API serves a kind."""

    prefix: str
    plural: str


RESOURCES = {
    names.KIND: Resource(f"apis/{names.API_VERSION}", names.PLURAL),
    "Deployment": Resource("apis/apps/v1", "deployments"),
    "ReplicaSet": Resource("apis/apps/v1", "replicasets"),
    "Service": Resource("api/v1", "services"),
    "Pod": Resource("api/v1", "pods"),
    "Event": Resource("api/v1", "events"),
    "PodDisruptionBudget": Resource("apis/policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": Resource("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Lease": Resource("apis/coordination.k8s.io/v1", "leases"),
    "PodMonitor": Resource("apis/monitoring.coreos.com/v1", "podmonitors"),
}


class ApiError(Exception):
    """The API server refused a request, or did not answer (`code` 0)."""

    def __init__(self, code: int, reason: str, message: str, request: str) -> None:
        super().__init__(f"{request}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.request = request


class Cluster:
    """Reads and writes of Kubernetes objects.

    Writes are server-side applies by one field manager: fields of others are left alone, ours are taken back.
    Raises ApiError where the server refuses or can't be reached.
    """

    def __init__(self, client: Any, metrics: Metrics, clock: Callable[[], datetime.datetime]) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock

    @classmethod
    async def connect(cls, metrics: Metrics, clock: Callable[[], datetime.datetime]) -> "Cluster":
        """A client with the pod's service account, or with the current kubeconfig context outside a cluster."""
        from kubernetes.aio import config
        from kubernetes.aio.client.api_client import ApiClient
        from kubernetes.aio.client.configuration import Configuration
        from kubernetes.aio.dynamic.client import DynamicClient

        # As Kopf's watches. The library's default looks for proxies and a .netrc in a thread, for each request anew.
        configuration = Configuration(client_session_kwargs={"trust_env": False})
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        # Never awaited: that would start discovery, and every path needed here is known.
        return cls(DynamicClient(ApiClient(configuration)), metrics, clock)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.client.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None where there is none (or no such API)."""
        try:
            return await self._request("GET", _path(kind, namespace, name), kind)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply. Returns the object as the server holds it now."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._apply(path, manifest["kind"], manifest)

    async def apply_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> Object:
        """Writes the whole status of a GLM5Deployment. Raises ApiError with code 404 where it is gone."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "status": dict(status),
        }
        return await self._apply(f"{_path(names.KIND, namespace, name)}/status", names.KIND, body)

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Deletes the object; nothing happens where there is none."""
        try:
            await self._request("DELETE", _path(kind, namespace, name), kind)
        except ApiError as error:
            if error.code != 404:
                raise

    async def listed(self, kind: str, namespace: str | None) -> tuple[set[str], int]:
        """The uids of objects of a kind (of children: ours), and the resourceVersion at which they were all there."""
        found = await self._request(
            "GET",
            _path(kind, namespace),
            kind,
            label_selector=None if kind == names.KIND else names.DEPLOYMENT_LABEL,
            # From the API server's cache, and without spec and status.
            resource_version="0",
            header_params={"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
        )
        uids = {str(item["metadata"]["uid"]) for item in found["items"] or []}
        return uids, int(found["metadata"]["resourceVersion"])

    async def has_api(self, group_version: str, plural: str) -> bool:
        """Whether the server knows this resource, such as `monitoring.coreos.com/v1`, `podmonitors`."""
        try:
            found = await self._request("GET", f"/apis/{group_version}", "APIResourceList")
        except ApiError as error:
            if error.code in (403, 404):
                return False
            raise
        return any(resource.get("name") == plural for resource in found.get("resources", []))

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """Events of type Warning about the object with this uid, the oldest first."""
        chosen = f"involvedObject.uid={uid},type=Warning"
        found = await self._request("GET", _path("Event", namespace), "Event", field_selector=chosen)
        return sorted(found["items"], key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))

    async def replace_lease(self, namespace: str, name: str, lease: Object | None, spec: Mapping[str, Any]) -> Object:
        """Writes a Lease only if it is still the copy given (None: if there is none). Raises ApiError otherwise."""
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": dict(spec)}
        if lease is None:
            return await self._request("POST", _path("Lease", namespace), "Lease", body=body)
        metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return await self._request("PUT", _path("Lease", namespace, name), "Lease", body=body)

    async def tell(self, about: Object, kind: str, reason: str, message: str) -> None:
        """An Event (Normal or Warning) on an object."""
        now = self._clock()
        metadata = about["metadata"]
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{time.time_ns():0{_EVENT_NAME_DIGITS}x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": names.MANAGED_BY},
            "reportingComponent": names.MANAGED_BY,
            "reportingInstance": names.MANAGED_BY,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        await self._request("POST", _path("Event", metadata["namespace"]), "Event", body=body)

    async def _apply(self, path: str, kind: str, body: Object) -> Object:
        return await self._request(
            "PATCH",
            path,
            kind,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=FIELD_MANAGER,
            force_conflicts=True,
        )

    async def _request(self, method: str, path: str, kind: str, **parameters: Any) -> Object:
        from kubernetes.aio.dynamic.exceptions import DynamicApiError

        request = f"{method} {path}"
        code = 0
        try:
            response = await self._client.request(method, path, serialize=False, _request_timeout=30, **parameters)
            code = response.status
            return json.loads(await response.read())  # type: ignore[no-any-return]
        except DynamicApiError as error:
            code = int(error.status or 0)
            raise _refused(code, error.body, request) from error
        except (OSError, TimeoutError) as error:
            raise ApiError(0, "Unreachable", f"the API server does not answer ({error!r})", request) from error
        except Exception as error:
            if type(error).__module__.startswith("aiohttp"):
                raise ApiError(0, "Unreachable", f"the API server does not answer ({error!r})", request) from error
            raise
        finally:
            self._metrics.api_requests.labels(method=method, kind=kind, code=str(code)).inc()


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    resource = RESOURCES[kind]
    where = f"namespaces/{namespace}/" if namespace else ""
    path = f"/{resource.prefix}/{where}{resource.plural}"
    return f"{path}/{name}" if name else path


def _refused(code: int, body: Any, request: str) -> ApiError:
    try:
        status = json.loads(body)
        return ApiError(code, str(status.get("reason", "")), str(status.get("message", "")), request)
    except (ValueError, TypeError, AttributeError):
        return ApiError(code, "", f"HTTP {code}", request)
