"""The server's description of itself: names, numbers and types of `tei.v1`, health by the kind of model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from embedserve_runtime.api.routes import RPC_SERVICES
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.rpc.generated import embedserve_pb2, tei_pb2
from embedserve_runtime.rpc.health import SERVICES
from embedserve_runtime.service.readiness import Phase
from tests.runtime.rpc.rpc_kit import served
from tests.support.tiny_models import build_card, build_classifier_card, build_splade_card

FACTS = Path(__file__).with_name("tei_v1.csv")
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
ALWAYS = {"", "embedserve.v1.Embeddings", "tei.v1.Info", "tei.v1.Tokenize"}


def label(field: FieldDescriptor) -> str:
    if field.is_repeated:
        return "repeated"
    is_message = field.message_type is not None
    return "optional" if field.has_presence and not is_message else "singular"


def rows_of(file: FileDescriptor) -> set[tuple[str, ...]]:
    rows: set[tuple[str, ...]] = set()
    for service in file.services_by_name.values():
        for method in service.methods:
            request_type = "stream " * method.client_streaming + method.input_type.name
            response_type = "stream " * method.server_streaming + method.output_type.name
            rows.add(("rpc", service.name, method.name, request_type, response_type))
    for message in file.message_types_by_name.values():
        for field in message.fields:
            named = field.message_type or field.enum_type
            kind = named.name if named else TYPES[field.type]
            rows.add(("field", message.name, field.name, str(field.number), f"{label(field)} {kind}"))
    for enum in file.enum_types_by_name.values():
        for value in enum.values:
            rows.add(("value", enum.name, value.name, str(value.number), ""))
    return rows


async def test_reflection_shows_teis_names_and_numbers() -> None:
    async with served() as server:
        file = server.client.pool.FindServiceByName("tei.v1.Embed").file
        with FACTS.open(encoding="utf-8", newline="") as facts:
            want = {tuple(row) for row in list(csv.reader(facts))[1:]}
        assert rows_of(file) == want


async def test_reflection_lists_all_services() -> None:
    async with served() as server:
        listed = set(server.client.services)
    assert listed == {
        *SERVICES,
        "grpc.health.v1.Health",
        *REFLECTION,
    }
    assert set(SERVICES) == set(RPC_SERVICES)


@pytest.mark.parametrize("service", REFLECTION)
async def test_reflection_answers_under_both_names_with_messages_as_it_describes_them(service: str) -> None:
    requests = [
        {"list_services": ""},
        {"file_containing_symbol": service},
        {"file_containing_symbol": "none"},
    ]
    async with served() as server:
        listed, described, missing = await server.client.stream(f"{service}/ServerReflectionInfo", requests)
    assert listed.DESCRIPTOR.full_name == f"{service.rpartition('.')[0]}.ServerReflectionResponse"
    names = {service_entry.name for service_entry in listed.list_services_response.service}
    assert names == {*SERVICES, "grpc.health.v1.Health", *REFLECTION}
    (file,) = map(FileDescriptorProto.FromString, described.file_descriptor_response.file_descriptor_proto)
    assert f"{file.package}.{file.service[0].name}" == service
    assert missing.error_response.error_code == StatusCode.NOT_FOUND.value[0]


def test_every_method_of_the_files_is_served() -> None:
    for name, service in (
        *tei_pb2.DESCRIPTOR.services_by_name.items(),
        *embedserve_pb2.DESCRIPTOR.services_by_name.items(),
    ):
        assert service.methods, name
        assert service.full_name in SERVICES


HEALTH = {
    "embedding": (build_card(), {"tei.v1.Embed"}),
    "sparse": (build_splade_card(), {"tei.v1.Embed"}),
    "reranker": (build_classifier_card("LABEL_0"), {"tei.v1.Predict", "tei.v1.Rerank"}),
    "classifier": (build_classifier_card("bad", "good"), {"tei.v1.Predict"}),
}


@pytest.mark.parametrize(("card", "want"), HEALTH.values(), ids=HEALTH)
async def test_health_follows_the_kind_of_the_model_and_the_phase(card: ModelCard, want: set[str]) -> None:
    async with served(card=card) as server:

        async def statuses() -> dict[str, int]:
            return {
                name: (await server.client.ask("grpc.health.v1.Health/Check", service=name)).status
                for name in ("", *SERVICES)
            }

        assert await statuses() == {
            name: SERVING if name in want | ALWAYS else NOT_SERVING for name in ("", *SERVICES)
        }
        server.bench.context.readiness.move(Phase.DRAINING, "going down")
        await server.server.update_health()
        assert set((await statuses()).values()) == {NOT_SERVING}


async def test_health_can_be_watched() -> None:
    async with served(ready=False) as server:
        path = "grpc.health.v1.Health/Watch"
        watch = server.client.call(path)(server.client.message(path, {}))
        assert (await watch.read()).status == NOT_SERVING
        server.bench.context.readiness.open(server.bench.service)
        await server.server.update_health()
        assert (await watch.read()).status == SERVING
        watch.cancel()
