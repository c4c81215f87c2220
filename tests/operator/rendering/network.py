"""Who reaches the pods, and what they reach."""

from __future__ import annotations

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import CONFIG, FETCH, POD, POLICY, RUNTIME, SERVICE, Case
from tests.support.differences import GONE

CASES = (
    Case(
        "API keys are a file of their Secret, in the serving container alone",
        hub_spec(auth={"secretRef": {"name": "keys", "key": "api"}}),
        {
            f"{CONFIG}.server.api_keys_file": "/etc/embedserve-keys/api-keys",
            f"{RUNTIME}.volumeMounts[/etc/embedserve-keys]": {
                "name": "embedserve-keys",
                "mountPath": "/etc/embedserve-keys",
                "readOnly": True,
            },
            f"{POD}.volumes[embedserve-keys]": {
                "name": "embedserve-keys",
                "secret": {
                    "secretName": "keys",
                    "items": [{"key": "api", "path": "api-keys"}],
                    "optional": True,
                },
            },
        },
    ),
    Case(
        "gRPC has ports in the pods, in the Service and in the policy",
        hub_spec(service={"grpcPort": 9090}),
        {
            f"{CONFIG}.server.grpc_port": 8083,
            f"{CONFIG}.server.pinned_grpc_port": 8084,
            f"{CONFIG}.server.space_grpc": "docs-{space8}.search.svc:9090",
            f"{POLICY}.ingress[0].ports[1].port": 8083,
            f"{POLICY}.ingress[0].ports[2]": {"port": 8082, "protocol": "TCP"},
            f"{POLICY}.ingress[0].ports[3]": {"port": 8084, "protocol": "TCP"},
            f"{POLICY}.egress[1].ports[1]": {"port": 8084, "protocol": "TCP"},
            f"{RUNTIME}.ports[grpc]": {"name": "grpc", "containerPort": 8083, "protocol": "TCP"},
            f"{RUNTIME}.ports[pinned-grpc]": {
                "name": "pinned-grpc",
                "containerPort": 8084,
                "protocol": "TCP",
            },
            f"{SERVICE}.ports[grpc]": {
                "name": "grpc",
                "port": 9090,
                "protocol": "TCP",
                "targetPort": "grpc",
                "appProtocol": "kubernetes.io/h2c",
            },
        },
    ),
    Case(
        "a load balancer is set up as the user says",
        hub_spec(
            service={
                "type": "LoadBalancer",
                "annotations": {"example.com/internal": "true"},
                "loadBalancerClass": "example.com/lb",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            }
        ),
        {
            "Service docs.metadata.annotations.example.com/internal": "true",
            f"{SERVICE}.type": "LoadBalancer",
            f"{SERVICE}.loadBalancerClass": "example.com/lb",
            f"{SERVICE}.loadBalancerSourceRanges": ["10.0.0.0/8"],
        },
    ),
    Case(
        "a node port is set up as the user says",
        hub_spec(service={"type": "NodePort", "externalTrafficPolicy": "Local"}),
        {f"{SERVICE}.type": "NodePort", f"{SERVICE}.externalTrafficPolicy": "Local"},
    ),
    Case(
        "the Service has the IP families that the user names",
        hub_spec(service={"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}),
        {f"{SERVICE}.ipFamilyPolicy": "PreferDualStack", f"{SERVICE}.ipFamilies": ["IPv4", "IPv6"]},
    ),
    Case(
        "only named clients, and the pods themselves, reach the serving ports",
        hub_spec(networkPolicy={"clients": [{"podSelector": {"matchLabels": {"app": "search"}}}]}),
        {
            f"{POLICY}.ingress[0].from": [
                {"podSelector": {"matchLabels": {"app": "search"}}},
                {"podSelector": {"matchLabels": {"embedserve.dev/service": "docs"}}},
            ]
        },
    ),
    Case(
        "browsers of the user's origins may call, and large answers are compressed",
        hub_spec(api={"corsOrigins": ["https://app.example"], "compressFromBytes": 65536}),
        {
            f"{CONFIG}.server.cors_origins": ["https://app.example"],
            f"{CONFIG}.server.compress_from_bytes": 65536,
        },
    ),
    Case(
        "there is no policy where the user wants none",
        hub_spec(networkPolicy={"mode": "Disabled"}),
        {"NetworkPolicy docs": GONE},
    ),
    Case(
        "the user's egress rules are added to the policy, and a proxy is set in every container",
        hub_spec(
            networkPolicy={"egress": [{"ports": [{"port": 3128, "protocol": "TCP"}]}]},
            pod={"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
        ),
        {
            f"{POLICY}.egress[3]": {"ports": [{"port": 3128, "protocol": "TCP"}]},
            f"{FETCH}.env[HTTPS_PROXY]": {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
            f"{RUNTIME}.env[HTTPS_PROXY]": {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
        },
    ),
)
