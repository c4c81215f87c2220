"""Prepares the model on a thread of its own, beside what the process does meanwhile."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.process.startup import ServableModel, prepare_model

log = logging.getLogger(__name__)


class ModelLoader:
    """Loads, warms up and measures a model once it is started.

    loaded: done when the model is in memory. prepared: the model when it can serve, or the EmbedserveError that
    prevents that. Neither can be cancelled; the process does not wait for the thread when it ends.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self.loaded: Future[None] = Future()
        self.prepared: Future[ServableModel] = Future()
        self._config = config

    def start(self) -> None:
        self.loaded.set_running_or_notify_cancel()
        self.prepared.set_running_or_notify_cancel()
        threading.Thread(target=self._prepare, name="loader", daemon=True).start()

    def _prepare(self) -> None:
        try:
            model = prepare_model(self._config, lambda: self.loaded.set_result(None))
        except EmbedserveError as error:
            self.prepared.set_exception(error)
        except Exception as error:  # outermost handler of this thread: anything else is a bug
            log.exception("unexpected error while loading the model")
            self.prepared.set_exception(
                EmbedserveError(f"unexpected error while loading the model: {type(error).__name__}: {error}")
            )
        else:
            self.prepared.set_result(model)
