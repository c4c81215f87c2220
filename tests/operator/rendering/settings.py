"""Settings of the runtime: fields that arrive in its configuration as they are."""

from __future__ import annotations

import yaml

from tests.operator.rendering.case import BUDGET, CONFIG, DEPLOYMENT, FETCH, POD, RUNTIME, Case
from tests.support.differences import GONE

EVERY_FIELD = yaml.safe_load("""
model:
  source:
    huggingFace:
      repo: acme/private-encoder
      revision: 8b3219a92973c328a8e22fadcfa821b5dc75636a
      tokenSecretRef: {name: hub, key: token}
  outputs: [dense]
  adapters: [retrieval]
  pooling: cls
  dimensions: 256
  maxLength: 512
servedModelName: docs
api:
  corsOrigins: ["https://app.example"]
  compressFromBytes: 65536
  openaiTokenIds: true
  clients: {header: X-Tenant, requestsPerMinute: 600, tokensPerMinute: 1000000}
promptName: query
prompts: {query: "query: ", passage: "passage: "}
hardware: {class: cpu}
batching:
  maxBatchTokens: 16384
  maxQueueTokens: 500000
  maxQueueInputs: 10000
  maxClientBatchSize: 128
  requestTimeoutSeconds: 60
  cacheBytes: 268435456
  cacheSeconds: 600
replicas: 3
resources:
  requests: {cpu: 500m, memory: 1Gi}
  limits: {cpu: 2, memory: 2Gi}
""")
"""A spec with every field that becomes a setting of the runtime."""

CASES = (
    Case(
        "every setting arrives in the runtime's configuration, and the token only where the model is fetched",
        EVERY_FIELD,
        {
            f"{CONFIG}.model.source": "acme/private-encoder",
            f"{CONFIG}.model.revision": "8b3219a92973c328a8e22fadcfa821b5dc75636a",
            f"{CONFIG}.model.pooling": "cls",
            f"{CONFIG}.model.outputs": ["dense"],
            f"{CONFIG}.model.adapters": ["retrieval"],
            f"{CONFIG}.model.max_length": 512,
            f"{CONFIG}.model.dimensions": 256,
            f"{CONFIG}.model.prompts": {"passage": "passage: ", "query": "query: "},
            f"{CONFIG}.model.default_prompt": "query",
            f"{CONFIG}.server.served_model_name": "docs",
            f"{CONFIG}.server.shutdown_grace_seconds": 60,
            f"{CONFIG}.server.openai_token_ids": True,
            f"{CONFIG}.server.client_header": "X-Tenant",
            f"{CONFIG}.server.client_requests_per_minute": 600,
            f"{CONFIG}.server.client_tokens_per_minute": 1000000,
            f"{CONFIG}.server.cors_origins": ["https://app.example"],
            f"{CONFIG}.server.compress_from_bytes": 65536,
            f"{CONFIG}.batching": {
                "max_batch_tokens": 16384,
                "max_queue_tokens": 500000,
                "max_queue_inputs": 10000,
                "max_client_batch_size": 128,
                "request_timeout_seconds": 60,
                "cache_bytes": 268435456,
                "cache_seconds": 600,
            },
            f"{DEPLOYMENT}.spec.replicas": 3,
            f"{POD}.terminationGracePeriodSeconds": 70,
            f"{FETCH}.env[EMBEDSERVE_MODEL__COMMIT]": GONE,
            f"{FETCH}.env[EMBEDSERVE_MODEL__TOKEN]": {
                "name": "EMBEDSERVE_MODEL__TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
            },
            f"{FETCH}.resources.limits.cpu": 2,
            f"{FETCH}.resources.limits.memory": "2Gi",
            f"{FETCH}.resources.requests.cpu": "500m",
            f"{FETCH}.resources.requests.memory": "1Gi",
            f"{RUNTIME}.resources": {
                "limits": {"cpu": 2, "memory": "2Gi"},
                "requests": {"cpu": "500m", "memory": "1Gi"},
            },
            "PodDisruptionBudget docs": BUDGET,
        },
    ),
)
