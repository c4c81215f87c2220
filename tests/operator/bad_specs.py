"""Wrong specs, and what must be said of each: by the API server (CEL and schema) and, where a rule of ours is broken,
by this program in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

SOURCE = {"huggingFace": {"repo": "a/b"}}
SHA256 = "0123456789abcdef" * 4
VOLUME = {"volume": {"claimName": "models"}}
ONE_SOURCE = "give exactly one source: one of huggingFace, http, s3, volume and image"
REPO = "repo must be OWNER/NAME as on the Hub, for example sentence-transformers/all-MiniLM-L6-v2"
QUANTITY = "must be a Kubernetes quantity of zero or more, such as 500m, 2 or 4Gi"
OWN_VARIABLE = "the operator sets HOME and every EMBEDSERVE_ variable itself: use the fields of spec"
OWN_PATH = (
    "the operator mounts its own volumes at /etc/embedserve, /etc/embedserve-keys, /models, /tmp, /volume"
)
OWN_LABEL = "are the operator's: choose another key"
QUALIFIED = "each key must be like team or example.com/team"
ADDRESSES = "must be a range of addresses such as 10.0.0.0/8"
OBJECT_NAME = "must be the name of an object in the same namespace"


@dataclass(frozen=True)
class Bad:
    """A spec, and words of the refusal."""

    spec: Spec
    message: str
    by_schema: bool = False
    """Broken is the plain schema, about which this program has its own words."""


def with_(**fields: Any) -> Spec:
    """The least spec with other fields."""
    return {"model": {"source": SOURCE, **fields.pop("model", {})}, **fields}


def _hub(**fields: Any) -> Spec:
    return {"model": {"source": {"huggingFace": {"repo": "a/b", **fields}}}}


def _volume(**fields: Any) -> Spec:
    return {"model": {"source": {"volume": {"claimName": "models", **fields}}}}


def _image(reference: str) -> Spec:
    return {"model": {"source": {"image": {"reference": reference}}}}


def _http(url: str = "https://models.example/minilm.tar.gz", sha256: str = SHA256, **fields: Any) -> Spec:
    return {"model": {"source": {"http": {"url": url, "sha256": sha256, **fields}}}}


def _s3(uri: str = "s3://models/minilm", **fields: Any) -> Spec:
    return {"model": {"source": {"s3": {"uri": uri, **fields}}}}


def _cache(**fields: Any) -> Spec:
    return with_(cache=fields)


def _onnx(cache: Spec | None = None, **fields: Any) -> Spec:
    return with_(onnx=fields, **({} if cache is None else {"cache": cache}))


def _limits(**fields: Any) -> Spec:
    return with_(resources={"limits": fields})


def _pod(**fields: Any) -> Spec:
    return with_(pod=fields)


def _env(**fields: Any) -> Spec:
    return _pod(env=[{"name": "A", **fields}])


def _mounted(path: str, volume: str = "mine") -> Spec:
    return _pod(
        volumes=[{"name": "mine", "emptyDir": {}}], volumeMounts=[{"name": volume, "mountPath": path}]
    )


def _clients(*peers: Spec) -> Spec:
    return with_(networkPolicy={"clients": list(peers)})


def _egress(*rules: Spec) -> Spec:
    return with_(networkPolicy={"egress": list(rules)})


_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}


def _schema(spec: Spec, message: str) -> Bad:
    return Bad(spec, message, by_schema=True)


BAD: dict[str, Bad] = {
    "no source": Bad({"model": {"source": {}}}, ONE_SOURCE),
    "two sources": Bad({"model": {"source": {**SOURCE, **VOLUME}}}, ONE_SOURCE),
    "no model": _schema({}, "spec.model: Required value"),
    "no repo": _schema({"model": {"source": {"huggingFace": {}}}}, "huggingFace.repo: Required value"),
    "a URL as repo": Bad(_hub(repo="https://hub.example/a/b"), REPO),
    "a repo without owner": Bad(_hub(repo="minilm"), REPO),
    "a revision with a space": Bad(
        _hub(revision="my branch"), "revision must be a commit, a tag or a branch"
    ),
    "a token by value": _schema(_hub(token="hf_x"), 'unknown field "spec.model.source.huggingFace.token"'),
    "a secret without key": _schema(_hub(tokenSecretRef={"name": "s"}), "tokenSecretRef.key: Required value"),
    "a secret's name with capitals": Bad(_hub(tokenSecretRef={"name": "Secret", "key": "k"}), OBJECT_NAME),
    "a secret's key with a slash": Bad(
        _hub(tokenSecretRef={"name": "s", "key": "a/b"}), "must be a key of the Secret"
    ),
    "an absolute path": Bad(_volume(path="/etc"), "path must be relative to the volume's root"),
    "a path that leaves the volume": Bad(_volume(path="a/../../b"), "must not contain '..'"),
    "an image without a tag": Bad(
        _image("registry.example/model"), "reference must name an image with a tag or digest"
    ),
    "a runtime without a tag": Bad(
        with_(runtimeImage="registry.example/embedserve-runtime"), "must name an image with a tag or digest"
    ),
    "an image with a blank": Bad(_image("model :1"), "reference must name an image with a tag or digest"),
    "a mirror without a scheme": Bad(_hub(endpoint="hub.example"), "must be a base URL such as https://"),
    "a mirror with a password": Bad(_hub(endpoint="https://me:secret@hub.example"), "without a password"),
    "an archive without its sum": _schema(
        {"model": {"source": {"http": {"url": "https://models.example/m.tar"}}}},
        "http.sha256: Required value",
    ),
    "an archive with a short sum": Bad(
        _http(sha256="abc"), "must be the archive's SHA-256: 64 lower-case hex"
    ),
    "an archive by FTP": Bad(_http("ftp://models.example/m.tar"), "must be the URL of an archive"),
    "an archive's host alone": Bad(_http("https://models.example"), "must be the URL of an archive"),
    "a whole bucket": Bad(_s3("s3://models"), "must be s3://BUCKET/PREFIX"),
    "a bucket in capitals": Bad(_s3("s3://Models/minilm"), "must be s3://BUCKET/PREFIX"),
    "keys of S3 by value": _schema(_s3(accessKey="x"), 'unknown field "spec.model.source.s3.accessKey"'),
    "an S3 server without a scheme": Bad(_s3(endpoint="minio:9000"), "must be a base URL such as https://"),
    "an ONNX file that is none": Bad(
        with_(model={"onnxFile": "model.bin"}), "must be the path of an ONNX file"
    ),
    "an origin with a path": Bad(
        with_(api={"corsOrigins": ["https://app.example/"]}), "must be an origin such as https://app.example"
    ),
    "an origin with a wildcard": Bad(
        with_(api={"corsOrigins": ["https://*.example"]}), "must be an origin such as https://app.example"
    ),
    "an ONNX file outside": Bad(with_(model={"onnxFile": "../a.onnx"}), "must be the path of an ONNX file"),
    "an empty refresh": _schema(with_(model={"refresh": ""}), "should be at least 1 chars long"),
    "int8 from nowhere": Bad(with_(model={"precision": "int8"}), "int8 is made by conversion; add onnx"),
    "fp8 on a CPU": Bad(with_(model={"precision": "fp8"}), "CPUs have no fp8; take int8 with onnx"),
    "an empty cache": Bad(_cache(), "give exactly one of volume and claimName"),
    "two caches": Bad(
        _cache(volume={"size": "1Gi"}, claimName="models"), "give exactly one of volume and claimName"
    ),
    "a volume without a size": _schema(_cache(volume={}), "cache.volume.size: Required value"),
    "a volume of no size": Bad(_cache(volume={"size": "0Gi"}), "must be a Kubernetes quantity above zero"),
    "a volume that is read only": Bad(
        _cache(volume={"size": "1Gi"}, readOnly=True), "readOnly needs claimName"
    ),
    "an unknown access mode": _schema(
        _cache(volume={"size": "1Gi", "accessModes": ["ReadOnlyMany"]}), 'supported values: "ReadWriteOnce"'
    ),
    "no access mode": _schema(
        _cache(volume={"size": "1Gi", "accessModes": []}), "should have at least 1 items"
    ),
    "an unknown end of a claim": _schema(
        _cache(volume={"size": "1Gi", "whenDeleted": "Ask"}), 'supported values: "Retain", "Delete"'
    ),
    "a claim's name with a slash": Bad(_cache(claimName="a/b"), OBJECT_NAME),
    "conversion without a cache": Bad(_onnx(convert="Always"), "needs a cache that can be written to"),
    "conversion into a filled cache": Bad(
        _onnx({"claimName": "models", "readOnly": True}, convert="Always"),
        "needs a cache that can be written",
    ),
    "ONNX outputs without a cache": Bad(_onnx(outputs=["logits"]), "are made by conversion into a cache"),
    "ONNX outputs of a filled cache": Bad(
        _onnx({"claimName": "models", "readOnly": True}, outputs=["logits"]),
        "are made by conversion into a cache",
    ),
    "ONNX outputs without conversion": Bad(
        _onnx({"claimName": "models"}, outputs=["logits"], convert="Never"), "onnx.convert: IfNeeded"
    ),
    "an unknown ONNX output": _schema(
        _onnx({"claimName": "models"}, outputs=["pooler_output"]), 'supported values: "last_hidden_state"'
    ),
    "no ONNX output": _schema(_onnx({"claimName": "models"}, outputs=[]), "should have at least 1 items"),
    "an unknown time of conversion": _schema(_onnx(convert="Maybe"), 'supported values: "Never"'),
    "an unknown variant": _schema(_onnx(precision="int4"), 'supported values: "auto"'),
    "a floor above one": Bad(_onnx(parity={"minCosine": 1.1}), "must be between 0 and 1; leave it out"),
    "a gRPC port that is HTTP's": Bad(
        with_(service={"grpcPort": 80}), "must be between 1 and 65535 and not 80"
    ),
    "a gRPC port beyond all": Bad(with_(service={"grpcPort": 70000}), "must be between 1 and 65535"),
    "a negative budget": Bad(
        with_(batching={"maxBatchTokens": -1}),
        "must be between 1 and 10000000; leave it out to let the runtime measure the best value",
    ),
    "a budget of zero": Bad(with_(batching={"maxBatchTokens": 0}), "leave it out to let the runtime"),
    "a queue of zero": Bad(with_(batching={"maxQueueInputs": 0}), "must be between 1 and"),
    "a timeout of a day": Bad(with_(batching={"requestTimeoutSeconds": 86400}), "must be between 1 and 3600"),
    "a budget in words": _schema(with_(batching={"maxBatchTokens": "many"}), "must be of type integer"),
    "an unknown pooling": _schema(with_(model={"pooling": "median"}), 'supported values: "auto", "cls"'),
    "an unknown task": _schema(with_(model={"task": "chat"}), 'supported values: "auto", "embed"'),
    "an unknown precision": _schema(
        with_(model={"precision": "int3"}), 'supported values: "auto", "float32"'
    ),
    "an unknown engine": _schema(with_(engine="steam"), 'supported values: "auto", "onnx", "torch"'),
    "no dimensions": Bad(with_(model={"dimensions": 0}), "leave it out to keep all dimensions"),
    "no length": Bad(with_(model={"maxLength": -8}), "leave it out to take the model's own limit"),
    "a class in capitals": Bad(with_(hardware={"class": "GPU"}), "must start with a letter"),
    "no accelerator": Bad(with_(hardware={"count": 0}), "leave it out for one accelerator"),
    "a resource without a domain": Bad(
        with_(hardware={"resourceName": "gpu"}), "must be a resource's name such as nvidia.com/gpu"
    ),
    "a negative number of replicas": Bad(with_(replicas=-1), "must be between 0 and 1000"),
    "replicas and an autoscaler": Bad(
        with_(replicas=2, autoscaling={"maxReplicas": 3}), "replicas and autoscaling exclude each other"
    ),
    "an autoscaler without a maximum": _schema(with_(autoscaling={}), "autoscaling.maxReplicas: Required"),
    "an autoscaler with its bounds swapped": Bad(
        with_(autoscaling={"minReplicas": 4, "maxReplicas": 2}), "minReplicas must not be above maxReplicas"
    ),
    "an autoscaler with a target of nothing": Bad(
        with_(autoscaling={"maxReplicas": 2, "target": "0m"}), "must be a Kubernetes quantity above zero"
    ),
    "an autoscaler to zero": Bad(
        with_(autoscaling={"minReplicas": 0, "maxReplicas": 2}), "needs triggers that wake the service"
    ),
    "an unknown metric": _schema(
        with_(autoscaling={"maxReplicas": 2, "metric": "luck"}), 'supported values: "queueDepth"'
    ),
    "an API key by value": _schema(with_(auth={"key": "x"}), 'unknown field "spec.auth.key"'),
    "a misspelt field": _schema(with_(batchin={}), 'unknown field "spec.batchin"'),
    "a field in the wrong place": _schema(with_(pooling="cls"), 'unknown field "spec.pooling"'),
    "a negative limit": Bad(_limits(cpu=-1), QUANTITY),
    "a negative quantity": Bad(_limits(memory="-4Gi"), QUANTITY),
    "a limit in words": Bad(_limits(memory="lots"), QUANTITY),
    "an empty served name": _schema(with_(servedModelName=""), "should be at least 1 chars long"),
    "an external name": _schema(with_(service={"type": "ExternalName"}), 'supported values: "ClusterIP"'),
    "a load balancer's class without one": Bad(
        with_(service={"loadBalancerClass": "x"}), "loadBalancerClass needs type: LoadBalancer"
    ),
    "a load balancer's ranges without one": Bad(
        with_(service={"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
        "loadBalancerSourceRanges needs type: LoadBalancer",
    ),
    "a traffic policy inside the cluster": Bad(
        with_(service={"externalTrafficPolicy": "Local"}),
        "externalTrafficPolicy needs type: LoadBalancer or NodePort",
    ),
    "two families on a single stack": Bad(
        with_(service={"ipFamilies": ["IPv4", "IPv6"]}), "two ipFamilies need ipFamilyPolicy"
    ),
    "an annotation of the operator on the Service": Bad(
        with_(service={"annotations": {"embedserve.dev/fingerprint": "x"}}), OWN_LABEL
    ),
    "an unknown mode of the policy": _schema(
        with_(networkPolicy={"mode": "Off"}), 'supported values: "Managed", "Disabled"'
    ),
    "an interval in words": Bad(
        with_(monitoring={"serviceMonitor": {"interval": "often"}}), "must be a duration such as 30s or 1m"
    ),
    "a variable of the runtime": Bad(_pod(env=[{"name": "EMBEDSERVE_MODEL__SOURCE"}]), OWN_VARIABLE),
    "another home": Bad(_pod(env=[{"name": "HOME", "value": "/"}]), OWN_VARIABLE),
    "a variable beside the Secret that has it": Bad(
        {**_s3(secretRef={"name": "keys"}), "pod": {"env": [{"name": "AWS_REGION", "value": "eu-west-1"}]}},
        "come from model.source.s3.secretRef: write them into that Secret, or remove secretRef",
    ),
    "a variable with two values": Bad(
        _env(value="x", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}), "give value or valueFrom"
    ),
    "a variable from nowhere": Bad(_env(valueFrom={}), "valueFrom takes exactly one of secretKeyRef"),
    "a variable with a blank": Bad(_pod(env=[{"name": "A B"}]), "must be a variable's name"),
    "a folder of the node": _schema(
        _pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
        'unknown field "spec.pod.volumes[0].hostPath"',
    ),
    "a volume of no kind": Bad(_pod(volumes=[{"name": "x"}]), "a volume is exactly one of configMap, secret"),
    "a volume of two kinds": Bad(
        _pod(volumes=[{"name": "x", "emptyDir": {}, "configMap": {"name": "c"}}]),
        "a volume is exactly one of configMap, secret",
    ),
    "a volume with a name of the operator": Bad(
        _pod(volumes=[{"name": "models", "emptyDir": {}}]),
        "volumes named config, embedserve-keys, models, source, tmp are the operator's: choose another name",
    ),
    "a mount over the model": Bad(_mounted("/models/x"), OWN_PATH),
    "a mount over the configuration": Bad(_mounted("/etc/embedserve"), OWN_PATH),
    "a relative mount": Bad(_mounted("data"), "mountPath must be an absolute path below /"),
    "a mount of nothing": Bad(
        _mounted("/data", "other"), "every name in volumeMounts must be the name of one of volumes"
    ),
    "a label of the operator": Bad(_pod(labels={"embedserve.dev/revision": "x"}), OWN_LABEL),
    "a label that Argo tracks by": Bad(_pod(labels={"app.kubernetes.io/instance": "x"}), OWN_LABEL),
    "a label's value with a blank": Bad(_pod(labels={"team": "a b"}), "must be a label's value"),
    "an annotation of the operator": Bad(_pod(annotations={"embedserve.dev/template": "x"}), OWN_LABEL),
    "a toleration of no effect": _schema(
        _pod(tolerations=[{"effect": "Maybe"}]), 'supported values: "NoSchedule"'
    ),
    "one Secret twice": _schema(
        _pod(imagePullSecrets=[{"name": "reg"}, {"name": "reg"}]),
        'imagePullSecrets[1]: Duplicate value: {"name":"reg"}',
    ),
    "two mounts at one path": _schema(
        _pod(
            volumes=[{"name": "mine", "emptyDir": {}}],
            volumeMounts=[{"name": "mine", "mountPath": "/data"}, {"name": "mine", "mountPath": "/data"}],
        ),
        "volumeMounts[1]: Duplicate value",
    ),
    "two volumes of one name": _schema(
        _pod(volumes=[{"name": "mine", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}]),
        "volumes[1]: Duplicate value",
    ),
    "one variable twice": _schema(
        _pod(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "env[1]: Duplicate value"
    ),
    "two spreads over the same": _schema(
        _pod(topologySpreadConstraints=[_SPREAD, {**_SPREAD, "maxSkew": 2}]),
        "topologySpreadConstraints[1]: Duplicate value",
    ),
    "one access mode twice": _schema(
        _cache(volume={"size": "1Gi", "accessModes": ["ReadWriteOnce", "ReadWriteOnce"]}),
        'accessModes[1]: Duplicate value: "ReadWriteOnce"',
    ),
    "one family twice": _schema(
        with_(service={"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}),
        'ipFamilies[1]: Duplicate value: "IPv4"',
    ),
    "a spread that is none": Bad(
        _pod(topologySpreadConstraints=[{**_SPREAD, "maxSkew": 0}]),
        "must be between 1 and 1000; 1 spreads evenly",
    ),
    "a label's key with a blank": Bad(_pod(labels={"my team": "a"}), QUALIFIED),
    "an annotation's key with two slashes": Bad(_pod(annotations={"a/b/c": "x"}), QUALIFIED),
    "a node's label that ends in a dot": Bad(_pod(nodeSelector={"pool.": "a"}), QUALIFIED),
    "a resource with a blank": Bad(_limits(**{"my gpu": 1}), QUALIFIED),
    "an annotation of the Service with a blank": Bad(with_(service={"annotations": {"a b": "x"}}), QUALIFIED),
    "a monitor's label with a colon": Bad(
        with_(monitoring={"serviceMonitor": {"labels": {"a:b": "x"}}}), QUALIFIED
    ),
    "requests above limits": Bad(
        with_(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "1025Mi"}}),
        "requests must not be above limits",
    ),
    "requests in digits above limits": Bad(
        with_(resources={"limits": {"cpu": "1500m"}, "requests": {"cpu": 2}}),
        "requests must not be above limits",
    ),
    "a range of addresses that is too narrow": Bad(
        with_(service={"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/99"]}), ADDRESSES
    ),
    "a client's range that is none": Bad(_clients({"ipBlock": {"cidr": "10.0.0.0/99"}}), ADDRESSES),
    "a client's IPv6 range that is none": Bad(_clients({"ipBlock": {"cidr": "2001:db8::/129"}}), ADDRESSES),
    "a client who is nobody": Bad(_clients({}), "a peer is an ipBlock, or a podSelector"),
    "a client of two kinds": Bad(
        _clients({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        "a peer is an ipBlock, or a podSelector",
    ),
    "a client by a label without values": Bad(
        _clients({"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}),
        "In and NotIn need values",
    ),
    "clients told apart by their keys": Bad(
        with_(api={"clients": {"header": "AUTHORIZATION"}}), "must not be a header that carries secrets"
    ),
    "a misspelt client": _schema(
        _clients({"podSelektor": {}}), 'unknown field "spec.networkPolicy.clients[0].podSelektor"'
    ),
    "a way out by a port beyond all": Bad(
        _egress({"ports": [{"port": 70000}]}), "must be a port from 1 to 65535, or the name"
    ),
    "a way out by a range that ends before it begins": Bad(
        _egress({"ports": [{"port": 90, "endPort": 80}]}),
        "endPort needs a port in digits that is not above it",
    ),
    "a toleration of every taint but by its value": Bad(
        _pod(tolerations=[{"operator": "Equal", "value": "x"}]),
        "a toleration without key needs operator: Exists",
    ),
    "a toleration of any value by its value": Bad(
        _pod(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
        "operator: Exists takes no value",
    ),
    "a toleration for a while of what evicts nobody": Bad(
        _pod(tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}]),
        "tolerationSeconds needs effect: NoExecute",
    ),
    "a privileged pod": _schema(
        _pod(securityContext={"privileged": True}), 'unknown field "spec.pod.securityContext"'
    ),
}
GOOD: dict[str, Spec] = {
    "the least": with_(),
    "a volume": _volume(path="encoders/minilm"),
    "a runtime of its own": with_(runtimeImage="registry.example:5000/embedserve-runtime:1.2.3-cpu"),
    "an image by digest": _image("registry.example/model@sha256:0123"),
    "a mirror": _hub(endpoint="https://hub.example/mirror"),
    "an archive": _http(tokenSecretRef={"name": "web", "key": "token"}),
    "a bucket whose region is a variable": {
        **_s3(),
        "pod": {"env": [{"name": "AWS_REGION", "value": "eu-west-1"}]},
    },
    "a bucket's prefix": _s3(endpoint="http://minio.storage.svc:9000", secretRef={"name": "keys"}),
    "a refreshed branch": with_(model={"refresh": "2026-11-28", "onnxFile": "onnx/model.onnx"}),
    "a volume of its own": _cache(volume={"size": "20Gi", "storageClassName": "fast"}),
    "a shared claim": _cache(claimName="models"),
    "conversion with floors": _onnx(
        {"volume": {"size": 1000000000}}, precision="int8", parity={"minCosine": 1, "minMeanCosine": 0.999}
    ),
    "a port for gRPC": with_(service={"grpcPort": 9090}),
    "limits": _limits(cpu=2, memory="4Gi"),
    "no replicas": with_(replicas=0),
    "an autoscaler": with_(autoscaling={"maxReplicas": 4}),
    "an autoscaler by requests, with half a target": with_(
        autoscaling={
            "maxReplicas": 4,
            "metric": "inFlight",
            "target": "500m",
            "metrics": [{"type": "Resource"}],
        }
    ),
    "a class of the chart's values": with_(hardware={"class": "l40s-pool", "count": 2}),
    "a mount of its own": _mounted("/data"),
    "keys with a domain": _pod(
        labels={"example.com/team": "a"}, annotations={"a.example/b_c.d": "x"}, nodeSelector={"pool": "a"}
    ),
    "requests as high as limits": with_(
        resources={
            "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
            "requests": {"memory": "1024Mi", "cpu": 1},
        }
    ),
    "clients of every kind": _clients(
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "2001:db8::/32"}},
    ),
    "ways out": _egress(
        {"ports": [{"port": 3128, "endPort": 3130}, {"port": "proxy", "protocol": "UDP"}]},
        {
            "to": [
                {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["proxy"]}]}}
            ]
        },
        {},
    ),
    "spreads over two parts": _pod(
        topologySpreadConstraints=[_SPREAD, {**_SPREAD, "topologyKey": "rack", "labelSelector": {}}]
    ),
    "one volume at two paths": _pod(
        volumes=[{"name": "mine", "emptyDir": {}}],
        volumeMounts=[{"name": "mine", "mountPath": "/a"}, {"name": "mine", "mountPath": "/b"}],
    ),
    "every taint": _pod(tolerations=[{"operator": "Exists"}]),
    "an affinity": _pod(affinity={"podAntiAffinity": {}}),
}
