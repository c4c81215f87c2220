"""Waits for self-checks that run beside a test."""

from __future__ import annotations

import asyncio

from embedserve_operator.apply.self_checks import TASK_NAME_PREFIX


async def wait_for_self_checks() -> None:
    """Return once no self-check runs on this loop."""
    while running := [task for task in asyncio.all_tasks() if task.get_name().startswith(TASK_NAME_PREFIX)]:
        await asyncio.wait(running)
