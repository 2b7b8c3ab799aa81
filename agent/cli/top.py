"""The screen of `frs top`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from agent.dashboard.fleet import for_how_long
from agent.reporting.shown import shown

#: What there is to see, as `agent.dashboard.fleet.fleet` gives it. Raises `LookFailed`.
Look = Callable[[], dict[str, Any]]


class LookFailed(Exception):
    """Nothing can be seen at the moment; the text says why."""


class Top(App[None]):
    """Shows what `look` gives, again and again; what it last gave stays while it fails."""

    CSS = """
    #sentence { padding: 0 1; text-style: bold; }
    #advice { padding: 0 1; color: $text-muted; }
    DataTable { height: auto; max-height: 40%; margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"), Binding("r", "look", "Look now"), Binding("tab", "app.focus_next", "Next table"),
    ]  # fmt: skip
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Look, every_s: float = 2.0) -> None:
        super().__init__()
        self._look = look
        self._every_s = every_s
        self._wrong: list[dict[str, Any]] = []

    def compose(self) -> ComposeResult:
        """One sentence, what is wrong and what to do, the partners, who has joined whom."""
        yield Static("Looking ...", id="sentence", markup=False)
        yield DataTable(id="wrong", cursor_type="row")
        yield Static("", id="advice", markup=False)
        yield DataTable(id="partners", cursor_type="row")
        yield DataTable(id="matrix", cursor_type="cell")
        yield Footer()

    def on_mount(self) -> None:
        """Look, and go on looking."""
        self.title = "frs top"
        self.set_interval(self._every_s, self.action_look)
        self.action_look()

    def action_look(self) -> None:
        """Look once more, unless that is under way."""
        self.run_worker(self._update(), exclusive=True)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """What to do about what is wrong there."""
        if event.data_table.id == "wrong" and event.cursor_row < len(self._wrong):
            one = self._wrong[event.cursor_row]
            number = f" (event {one['event']}, docs/events.md)" if one["event"] else ""
            self.query_one("#advice", Static).update(shown(f"{one['advice'] or ''}{number}").strip())

    async def _update(self) -> None:
        try:
            seen = await asyncio.to_thread(self._look)
        except LookFailed as error:
            self.query_one("#sentence", Static).update(shown(str(error)))
            return
        now = time.time()
        self._wrong = seen["wrong"]
        self.query_one("#sentence", Static).update(shown(seen["sentence"]))
        self._fill("wrong", ("Wrong with", "What", "For"), (
            (one["who"], one["what"], for_how_long(one["since"], now)) for one in self._wrong
        ))  # fmt: skip
        if not self._wrong:
            self.query_one("#advice", Static).update("")
        self._fill("partners", ("Partner", "Joined", "For", "To come", "To send", "Half within", "95 % within"), (
            (one["partner"], f"{one['joined']} of {one['wanted']}", for_how_long(one["since"], now), one["backlog_in"],
             one["backlog_out"], _seconds(one["latency_p50_s"]), _seconds(one["latency_p95_s"]))
            for one in seen["partners"]
        ))  # fmt: skip
        members = seen["members"] if len(seen["members"]) > 1 else []
        self._fill("matrix", ("From / to", *members), (
            (of, *(_cell(seen["matrix"].get(of, {}).get(to)) for to in members)) for of in members
        ))  # fmt: skip

    def _fill(self, name: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        """Names come from elsewhere: they are text, and never markup."""
        table = self.query_one(f"#{name}", DataTable)
        lines = [[Text(shown(str(cell))) for cell in row] for row in rows]
        place = table.cursor_coordinate
        table.clear(columns=True)
        table.display = bool(lines)
        table.add_columns(*(Text(shown(head)) for head in heads))
        for line in lines:
            table.add_row(*line)
        table.cursor_coordinate = place


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    joined = {None: "not known", True: "joined", False: "NOT JOINED" if cell["scheduled"] else "closed"}[cell["joined"]]
    return f"{joined}, {cell['backlog']} wait" if cell["backlog"] else joined
