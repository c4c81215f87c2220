"""`server.http_workers: auto`, as real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

from tests.support.server_process import list_front_ends, start_server
from tests.support.static_models import Saved

# A table of vectors on a machine with three cores: two front ends are worth it.
THREE_CORES = """
from embedserve_runtime.process import startup
startup.count_usable_cpus = lambda: 3
startup.measure_rate = lambda run, texts, **_: 1e12
"""
SETTINGS = {"server": {"http_workers": "auto", "management_port": None}}


def test_front_ends_that_were_counted_take_over_the_port(tmp_path: Path) -> None:
    Saved().save(tmp_path)
    with start_server(tmp_path, tmp_path, SETTINGS, before=THREE_CORES) as server:
        listening = server.wait_for("listening, loading the model")
        assert server.wait_for("front ends counted")["http_workers"] == 2
        server.wait_until_ready()
        assert server.address == listening["address"]
        assert len(list_front_ends(server)) == 2
        makers: set[str] = set()
        while len(makers) < 2:
            answer = httpx.get(f"{server.address}/info")
            assert answer.json()["http_workers"] == 2
            makers.add(answer.headers["x-request-id"].partition("-")[0])
        assert httpx.post(f"{server.address}/embed", json={"inputs": "a"}).status_code == 200
        assert "embedserve_http_workers 2.0" in httpx.get(f"{server.address}/metrics").text
        server.stop(signal.SIGTERM)
        assert server.wait_for_exit() == 0


def test_where_one_is_enough_the_process_answers_itself(tmp_path: Path) -> None:
    Saved().save(tmp_path)
    with start_server(tmp_path, tmp_path, SETTINGS, before=THREE_CORES.replace("3", "2")) as server:
        assert server.wait_for("front ends counted")["http_workers"] == 1
        server.wait_until_ready()
        assert list_front_ends(server) == []
        assert httpx.get(f"{server.address}/info").json()["http_workers"] == 1
