"""A killed agent's journal: what was aging, and what was handed on but not dealt with, comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

from journal.journal import Journal

AGENT = """
import asyncio, sys
from journal.journal import Journal

async def main(root, db):
    aged = []
    journal = Journal(root, db, aging_s=1000)
    journal.start(asyncio.get_running_loop(), aged.extend, lambda *why: None)
    await journal.barrier()
    for name in ("dealt with", "handed on", "aging"):
        with open(f"{root}/{name}", "w") as f:
            f.write("x")
        await journal.barrier()
        if name != "aging":
            journal.flush()
            await journal.barrier()
    journal.retire([a.usn for a in aged if a.path == "dealt with"])
    while True:
        await journal.barrier()
        if not journal._cache.unsaved:
            break
        await asyncio.sleep(0.01)
    print(max(a.usn for a in aged), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_records_survive_a_kill(tmp_path):
    root, db = tmp_path / "root", tmp_path / "journal.db"
    root.mkdir()
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(root), str(db)], stdout=subprocess.PIPE, text=True)
    try:
        last = int(agent.stdout.readline())
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    aged: list = []
    journal = Journal(str(root), str(db), aging_s=1000)
    journal.start(asyncio.get_running_loop(), aged.extend, lambda *why: None)
    try:
        await journal.barrier()
        (root / "new").write_text("x")
        await journal.barrier()
        journal.flush()
        await journal.barrier()
    finally:
        journal.stop()
    assert {a.path for a in aged} == {"handed on", "aging", "new"}
    new = next(a for a in aged if a.path == "new")
    assert new.first_usn > last
