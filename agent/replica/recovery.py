"""What a replica set does when its engine fails on an event, or an action cannot be begun."""

from __future__ import annotations

from typing import Protocol

from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.engine.stored import Unreadable
from agent.replica.actions import Actions
from agent.replica.batches import Batches
from agent.replica.faults import Faults, answer_to, survives, told
from agent.replica.ports import Ports
from agent.replica.running import Running
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.reporting.log import ContextAdapter
from agent.work.supervise import Supervisor
from idtable.errors import StoreError
from idtable.store import Store


class Parts(Protocol):
    """What this module needs of the replica set."""

    name: str
    ports: Ports
    store: Store
    engine: Engine
    batches: Batches
    actions: Actions
    supervisor: Supervisor
    incidents: Incidents
    log: ContextAdapter


class Recovery:
    """Drops the event, keeps its sender away for a while, and has a new engine go on. Only for the event loop's
    thread."""

    def __init__(self, parts: Parts, running: Running, faults: Faults) -> None:
        self._parts = parts
        self._running = running
        self._faults = faults

    def broken(self, event: ev.Event, error: Exception) -> None:
        """The engine failed on an event. The event is dropped, a partner that sent it is kept away for a while, and an
        engine made anew from the store goes on with the others."""
        parts, running = self._parts, self._running
        running.roll_back()
        if isinstance(error, Unreadable):
            running.stop_for(str(parts.store.damage(error)))
            return
        if isinstance(error, StoreError):
            running.halt("the database cannot be read", error)
            return
        what = f"13506 the engine failed on {told(event)}: {type(error).__name__}: {error}"
        if isinstance(event, ev.PacketReceived):
            partner = event.packet.from_
            seconds = self._faults.bar(partner.guid)
            text = f"{what}; it is dropped, and nothing is taken from {partner.name} for {seconds:.0f} s"
            parts.incidents.report(Cause.FAULT, partner.name, text, level="error")
        elif isinstance(event, ev.Resumed | ev.Started) or self._faults.too_many():
            parts.log.error("%s", what, exc_info=error)
            fault = f"{what}. This is a fault of frs: report it with the log; a restart of the agent tries again"
            running.stop_for(fault)
            return
        else:
            parts.incidents.report(Cause.FAULT, parts.name, f"{what}; it is dropped", level="error")
            parts.engine.note_error(parts.ports.now(), what)
        parts.log.error("%s", "13506 where it failed:", exc_info=error)
        parts.supervisor.start(self.renew_engine(), "starting the engine anew")

    async def renew_engine(self) -> None:
        """Begin anew from the store at once, when what the former engine began is over."""
        parts, running = self._parts, self._running
        last_error = parts.engine.last_error
        await parts.actions.idle()
        if running.closed or running.stopped or running.error is not None:
            return
        if not running.remake_engine():
            return
        if last_error is not None:
            parts.engine.note_error(*last_error)
        parts.actions.renew()
        parts.batches.go_on(running.first_event(), lambda event: survives(event) and not self._is_barred(event))

    def _is_barred(self, event: ev.Event) -> bool:
        return isinstance(event, ev.PacketReceived) and self._faults.barred(event.packet.from_.guid)

    def unacted(self, action: ev.Action, error: Exception) -> None:
        """An action could not be begun: whoever waits for it is told, and the others are carried out."""
        parts = self._parts
        text = f"{type(action).__name__} cannot be carried out: {type(error).__name__}: {error}"
        parts.incidents.report(Cause.FAULT, parts.name, text, level="error")
        answer = answer_to(action, error)
        if answer is not None:
            parts.batches.post(answer)
