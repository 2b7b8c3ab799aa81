"""Between change orders and IDTable records: versions, marks of descent, the record after a change.

Marks of descent. Whether a remote change was made by somebody who knew the version it replaces cannot be told from the
fields of 3.3.4.4.6. AckVersion, which a vendor "may set to any value" (3.3.4.4.4.1.1) and a receiver must not change
(3.3.4.1), carries a mark of the version that a change was made from. A version made here that is replaced by one
without its mark is a conflict's loser and is kept, as is content written here under a version that others made by
renaming it or giving it another mode (they may have left since); versions of other vendors bear no marks of ours, and
what they replace is kept too, in doubt. Records keep the mark above the 32 bits of Flags, for later VVJoins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container

from agent.engine import flags as fl
from agent.engine.context import EngineStore, facts_of, with_facts
from agent.engine.events import Edition, Facts, Installed
from agent.engine.reconcile import Version
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import ZERO_GUID
from idtable.records import IDRecord

#: In IDRecord.flags, never on the wire: the record stands under a name that was not announced (see names).
ASIDE = 0x40000000
#: Likewise: the record has a passing name, in the IDTable only, until the end of the same batch of local changes.
PASSING = 0x20000000
#: Likewise: the content was last written here, whoever renamed the file or changed its mode since.
WRITTEN = 0x10000000
#: Likewise: what this member last made of a version of others is where it is, or its numbers, and no user had a hand in
#: that: a name was lost, say.
RESOLVED = 0x04000000
#: Likewise: not all that belongs to the version could be kept here; the IDTable remembers what (Store.unstored).
UNSTORED = 0x08000000
#: In the first byte of what it remembers (staging.unstored, What.STREAMS): the MD5 of the streams that came is not that
#: of those which are generated here.
_ANOTHER_FORM = 64

_MARK_BITS = 30
#: The bits of AckVersion that hold a mark.
MARKS = (1 << _MARK_BITS) - 1


def mark(originator: bytes, vsn: int) -> int:
    """The mark of one version, never 0."""
    digest = hashlib.md5(originator + vsn.to_bytes(8, "little"), usedforsecurity=False).digest()
    return (int.from_bytes(digest[:4], "little") & MARKS) | 1


def mark_of(record: IDRecord | None) -> int:
    """The mark of a record's version; 0 for none."""
    return 0 if record is None else mark(record.originator_guid, record.originator_vsn)


def with_base(flags: int, base: int) -> int:
    """IDRecord.flags that hold a mark of descent."""
    return (flags & 0xFFFFFFFF) | (base & MARKS) << 32


def base_of(record: IDRecord) -> int:
    """The mark of the version that the record's version was made from."""
    return record.flags >> 32


def changed_here(record: IDRecord, own_originators: Container[bytes]) -> bool:
    """Whether a user of this member wrote the content, or changed the version last."""
    changed = record.originator_guid in own_originators and not record.flags & RESOLVED
    return changed or bool(record.flags & WRITTEN)


def forgotten(record: IDRecord | None) -> bool:
    """The tombstone of a file that was removed because nobody seemed to have it any more (see reseed)."""
    return record is not None and record.deleted and record.originator_guid == ZERO_GUID


def version_of(record: IDRecord) -> Version:
    """What the conflict rule looks at in an IDTable record."""
    size = 0 if record.is_dir else record.size
    return Version(record.event_time, record.version, size, record.originator_guid, record.originator_vsn)


def offered(co: ChangeOrder) -> Version:
    """What the conflict rule looks at in a change order."""
    return Version(co.event_time, co.file_version_number, co.file_size, co.originator_guid, co.frs_vsn)


def place_of(store: EngineStore, parent_guid: bytes, name: str) -> tuple[str, int | None] | None:
    """Path of an entry and the inode of its folder, as the IDTable has them; None where the folder is not (any more):
    another may be at its path by now."""
    record = store.get(parent_guid)
    folder = store.path_of(parent_guid)
    if record is None or record.deleted or folder is None:
        return None
    return (f"{folder}/{name}" if folder else name), record.ino


def edition_of(record: IDRecord) -> Edition:
    """A record's version, to be told to people."""
    return Edition(
        record.file_guid,
        record.parent_guid,
        record.name,
        record.version,
        record.event_time,
        record.fsize if record.fsize is not None else record.size,
        record.md5,
        record.originator_guid,
        record.originator_vsn,
        record.deleted,
    )


def edition_in(co: ChangeOrder, checksum: bytes) -> Edition:
    """A change order's version, to be told to people."""
    return Edition(
        co.file_guid,
        co.new_parent_guid,
        co.file_name,
        co.file_version_number,
        co.event_time,
        co.file_size,
        checksum,
        co.originator_guid,
        co.frs_vsn,
        fl.is_delete(co.location_cmd, co.flags),
    )


def record_after(
    co: ChangeOrder, checksum: bytes, old: IDRecord | None, event: Installed | None, *, fetched: bool
) -> IDRecord:
    """The IDTable record once the change order is installed; `fetched`: from a staging file."""
    is_dir = fl.is_folder(co.location_cmd, co.flags, co.file_attributes)
    new = IDRecord(
        file_guid=co.file_guid,
        parent_guid=co.new_parent_guid,
        name=co.file_name,
        is_dir=is_dir,
        version=co.file_version_number,
        event_time=co.event_time,
        originator_guid=co.originator_guid,
        originator_vsn=co.frs_vsn,
        md5=checksum,
        attributes=co.file_attributes,
        size=co.file_size,
        flags=with_base(co.flags & c.CO_FLAG_SKIP_VV_UPDATE, co.ack_version),
        kind="folder" if is_dir else "file",
    )
    if old is not None and not old.deleted:
        new.kind = old.kind
        facts = facts_of(old)
        if facts is not None:
            with_facts(new, facts)
        if not fetched:
            new.md5 = old.md5
        if new.md5 == old.md5 or _same_data(facts, event):
            new.flags |= old.flags & WRITTEN
        if not fetched:
            new.flags |= old.flags & UNSTORED
    if event is not None:
        if isinstance(event.facts, Facts) and (fetched or old is None or same_content(old, event.facts)):
            with_facts(new, event.facts)
        if event.md5 is not None and fetched:
            new.md5 = event.md5
        if fetched and event.unstored:
            new.flags |= UNSTORED
        if event.file_kind is not None:
            new.kind = event.file_kind
    return new


def _same_data(known: Facts | None, event: Installed | None) -> bool:
    """What was installed differs in mode or owner at most: size and time of the data are the file's of before."""
    if known is None or event is None or not isinstance(event.facts, Facts):
        return False
    return (known.fsize, known.mtime_ns) == (event.facts.fsize, event.facts.mtime_ns)


def same_content(record: IDRecord, facts: Facts) -> bool:
    """The file was only renamed: if somebody wrote to it meanwhile, the record must go on saying what it was."""
    known = facts_of(record)
    if known is None:
        return True
    if (known.mode, known.uid, known.gid) != (facts.mode, facts.uid, facts.gid):
        return False
    return record.is_dir or (known.fsize, known.mtime_ns) == (facts.fsize, facts.mtime_ns)


def tombstone_after(co: ChangeOrder, old: IDRecord | None, now: int) -> IDRecord:
    """The tombstone of what the change order removes."""
    is_dir = fl.is_folder(co.location_cmd, co.flags, co.file_attributes)
    return IDRecord(
        file_guid=co.file_guid,
        parent_guid=old.parent_guid if old is not None else co.new_parent_guid,
        name=co.file_name,
        is_dir=is_dir,
        version=co.file_version_number,
        event_time=co.event_time,
        originator_guid=co.originator_guid,
        originator_vsn=co.frs_vsn,
        attributes=co.file_attributes,
        size=co.file_size,
        deleted=True,
        deleted_time=now,
        flags=with_base(co.flags & c.CO_FLAG_SKIP_VV_UPDATE, co.ack_version),
        kind="folder" if is_dir else "file",
    )


def checksum_of(record: IDRecord, store: EngineStore) -> bytes:
    """What a change order for the record's version says of its streams: their MD5, or 16 zero bytes (nothing) where
    what is sent may have that or another one: the staging file that came, while it is here, and then one that is made
    here, in which not all is that came."""
    remembered = store.unstored(record.file_guid) if record.flags & UNSTORED else b""
    return bytes(16) if remembered and remembered[0] & _ANOTHER_FORM else record.md5
