"""`<p>_decode`: token ids in, chunks of tokens out (decoupled). One engine for each model instance.

`execute` only queues. The engine's thread hands chunks to a delivery thread. A third thread looks at the flags file, flushes
metrics, syncs the usage ledger, looks for consumers that left, and has Triton load the pipeline anew when the engine is broken.
"""

from __future__ import annotations

import sys
import threading
import uuid
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.errors import EngineError, OverloadError, RequestError
from builder.repository.event_log import EventLog
from builder.repository.flag_store import FlagStore
from builder.repository.flag_watch import FlagWatch
from builder.repository.flags import FLAGS
from builder.repository.models.answer import Answer
from builder.repository.models.billing import Billing
from builder.repository.models.control_upkeep import ControlUpkeep
from builder.repository.models.delivery import Delivery
from builder.repository.models.deserted import Listener, address_of
from builder.repository.models.folder import read_spec, version_folder
from builder.repository.models.loader import load
from builder.repository.models.parameters import Options
from builder.repository.models.restart import Restart
from builder.repository.models.rollout import CONTROL, arm
from builder.repository.models.tensors import log_exception, read_ints, read_text
from builder.runtime.request import Cancellation, FinishReason, Output, Request, Usage
from builder.telemetry.request_traces import open_request_traces
from builder.telemetry.triton_sink import TritonSink

UPKEEP_PERIOD = 0.25  # seconds between two looks at the flags and two flushes of the metrics
# Seconds after which a waiting thread may take Python's lock. At the default of 5 ms the engine's thread, back from a pass, would wait
# that long whenever the delivery thread is making a response.
SWITCH_INTERVAL = 0.0001


class TritonPythonModel:
    load = staticmethod(load)
    read_spec = staticmethod(read_spec)

    def initialize(self, args: dict[str, Any]) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        folder = version_folder(args)
        self._version = str(args["model_version"])
        model = str(args["model_name"]).removesuffix("_decode")
        self._sink = TritonSink(pb_utils.MetricFamily, model=model, version=self._version)
        self._engine = self.load(folder, self._sink)
        spec = self.read_spec(folder)
        self._billing = Billing(folder.parent.parent, spec.chargeback, model=model, version=self._version)
        self._speculation = spec.speculation
        self._stream_interval = spec.serving.stream_interval
        self._control = ControlUpkeep(EventLog(folder.parent.parent, model, self._version), self._sink, pb_utils.Logger.log_warn)
        self._control.event("load")
        self._flags = FlagWatch(FlagStore(folder.parent.parent, model))
        self._apply_flags()  # before the first request
        self._traces = open_request_traces(spec.tracing, self._engine.observe_steps, model=model, version=self._version)
        self._delivery = Delivery(self._engine.cancel, self._record)
        self._restart = Restart(model, self._engine, folder / "model.py")
        self._deserted = Listener(address_of(model, self._version))
        self._stopping = threading.Event()
        self._upkeeper = threading.Thread(target=self._upkeep, daemon=True, name="tandem-upkeep")
        self._upkeeper.start()
        self._engine.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            client_id, options = Options.from_json(read_text(request, "request"))
            samples = options.sampling.n
            answer = Answer(
                request.get_response_sender(), client_id, options.stream, self._version, self._stream_interval, samples, options.tenant
            )
            try:
                if options.cancel is not None:
                    self._cancel(options.cancel, answer)
                else:
                    self._submit(options, read_ints(request, "input_ids").tolist(), answer)
            except Exception as error:  # whatever one request holds, the model lives on
                if isinstance(error, OverloadError):
                    self._sink.refused(options.tenant, error.limit)
                answer.fail(error)

    def finalize(self) -> None:
        """Stop the engine, then answer whoever still waits."""
        self._control.event("unload")
        self._engine.stop()
        self._stopping.set()
        for answer in self._delivery.stop():
            answer.fail(EngineError("the model was unloaded before the answer was complete", mend="Send the request again"))
        self._upkeeper.join()
        self._deserted.close()
        self._billing.close()
        self._traces.close()

    def _record(self, tenant: str, output: Output) -> None:
        """Of an output on its way out."""
        self._billing.record(tenant, output)
        self._traces.note(output)

    def _submit(self, options: Options, prompt_ids: list[int], answer: Answer) -> None:
        engine_id = uuid.uuid4().hex  # a client may use one id twice, the engine may not
        side = arm(self._speculation, answer.client_id or engine_id, options.tenant)
        request = Request(
            engine_id,
            tuple(prompt_ids),
            options.sampling,
            options.speculation and side != CONTROL,
            options.tenant,
            rollout_arm=side,
            priority=options.priority,
            timeout=options.timeout_ms / 1000 if options.timeout_ms is not None else None,
            early_exit=options.early_exit,
        )
        answer.traceparent = self._traces.begin(request, options.traceparent, options.tokenized)
        self._delivery.open(engine_id, answer)
        try:
            self._engine.submit(request, partial(self._delivery.put, engine_id))
        except Exception as error:
            self._delivery.forget(engine_id)
            self._traces.refuse(request, error)
            raise

    def _cancel(self, client_id: str, answer: Answer) -> None:
        running = [engine_id for engine_id, other in self._delivery.live() if other.client_id == client_id]
        stopped = [self._engine.cancel(engine_id, Cancellation.CLIENT) for engine_id in running]
        if not any(stopped):
            raise RequestError(f"no request with id {client_id!r} is running", where="cancel")
        answer.add(Output(request_id=client_id, token_ids=(), finish_reason=FinishReason.CANCELLED, usage=Usage(0, 0)))

    def _apply_flags(self) -> None:
        """Hand changed flags to the engine, running requests included, and say in log and metrics what is in force."""
        if not self._flags.poll():
            return
        flags, broken = self._flags.flags, self._flags.broken
        self._engine.set_switches(flags.switches())
        in_force = {flag: flags.in_force(flag)[0] for flag in FLAGS}
        self._sink.flags_read(in_force, broken=broken is not None)
        if broken is not None:
            pb_utils.Logger.log_error(f"{broken} The last good flags stay in force.")
        shown = ", ".join(f"{flag} {'on' if on else 'off'}" for flag, on in in_force.items())
        self._control.event("flags", in_force=in_force, tenants=sorted(flags.tenants), broken=broken is not None)
        pb_utils.Logger.log_info(f"flags in force: {shown}; tenants with their own: {', '.join(flags.tenants) or 'none'}")

    def _upkeep(self) -> None:
        while not self._stopping.wait(UPKEEP_PERIOD):
            try:
                self._apply_flags()
                self._billing.upkeep(self._sink)
                self._control.take(self._engine.control_report())
                self._sink.flush()
                self._traces.flush()
                deserted = set(self._deserted.keys())
                for engine_id, answer in self._delivery.live():
                    if answer.key in deserted or answer.consumer_gone():
                        self._engine.cancel(engine_id, Cancellation.DISCONNECTED)
                self._restart.look()
            except Exception as error:  # flags and metrics must never end the serving
                log_exception(error)
        self._billing.upkeep(self._sink)
        self._sink.flush()
