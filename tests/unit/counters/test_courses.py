"""The number of a course: equal in all files, to be made by anybody, and held against what the rows are of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.counters import courses, parquet
from agent.counters.archive import Policy, archive
from agent.counters.ledger import Ledger
from tests.unit.counters.test_archive import files, line

OTHERS = ({}, {"connection": "a->b", "connection_guid": "gc"}, {"set_guid": "ge"}, {"start": 2, "run": "s"})
#: From the outside: printf '["hq","ga","gd",1,"r","","Files Installed"]' | b2sum -l 64, the bytes from the end.
BY_HAND = int.from_bytes(bytes.fromhex("e1209817ea12df05"), "little", signed=True)


def table(folder: Path) -> pa.Table:
    """Samples of several instances and starts; the fleet of one has a name beyond ASCII."""
    path = folder / "00000001-000001.jsonl"
    path.write_text("".join(line(s, 2 * s, **of) for s in range(0, 20, 5) for of in (*OTHERS, {"fleet": "h\u00e9"})))
    return parquet.Journal(path).table()


def written(folder: Path, change: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> Path:
    """A file of samples, of which something was changed by whoever knows how to write one."""
    path = folder / "whole.parquet"
    parquet.write(table(folder), path)
    pq.write_table(change(pq.read_table(path)), folder / "changed.parquet", write_page_checksum=True)
    return folder / "changed.parquet"


def with_courses(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(courses.COLUMN), courses.COLUMN, numbers)


def test_a_course_has_one_number_that_anybody_can_make(tmp_path: Path) -> None:
    assert courses.course("hq", "ga", "gd", 1, "r", "", "Files Installed") == BY_HAND
    beyond = int.from_bytes(bytes.fromhex("cad172424d202b1a"), "little", signed=True)  # "h\u00e9", as b2sum has it
    assert courses.course("h\u00e9", "ga", "gd", 1, "r", "", "Files Installed") == beyond
    rows = pq.read_table(written(tmp_path))
    assert rows.schema.field(courses.COLUMN).type == pa.int64()
    found = {tuple(row[name] for name in courses.OF): row[courses.COLUMN] for row in rows.to_pylist()}
    assert found == {of: courses.course(*of) for of in found}
    assert {of[:6] for of in found} == {
        ("hq", "ga", "gd", 1, "r", ""), ("hq", "ga", "gd", 1, "r", "gc"), ("hq", "ga", "ge", 1, "r", ""),
        ("hq", "ga", "gd", 2, "s", ""), ("h\u00e9", "ga", "gd", 1, "r", ""),
    }  # fmt: skip
    assert len(set(found.values())) == len(found) == 5 * 3, "sums, samples and the backlog of each"


def test_rows_are_what_they_were_without_it(tmp_path: Path) -> None:
    whole = written(tmp_path)
    assert parquet.read(whole).schema.names == parquet.SCHEMA.names
    without = written(tmp_path, lambda rows: rows.drop_columns([courses.COLUMN]))
    told = parquet.look(without)
    assert told
    assert not any(one.course for one in told)
    whole = written(tmp_path)
    assert parquet.look(whole) == told
    assert all(one.course for one in parquet.look(whole))


def test_what_is_thinned_has_its_numbers_still(tmp_path: Path) -> None:
    table(tmp_path)
    archive(tmp_path, "", Policy(1, 30, 365, 1 << 40), date(2026, 1, 10))
    (tmp_path / "date=2026-01-11").mkdir()
    archive(tmp_path, "", Policy(1, 30, 365, 1 << 40), date(2026, 1, 11))
    [path] = files(tmp_path)
    assert path.name.endswith(".minutes.parquet")
    assert all(one.course for one in parquet.look(path))


def test_names_that_are_no_names(tmp_path: Path) -> None:
    """Where none is told, a number says nothing that could be held against it; other types are nobody's."""
    column = "counter"
    at = parquet.SCHEMA.get_field_index(column)
    for values in ([None] * 8, [b"Sample"] * 8, [{"a": 1}] * 8):
        path = written(
            tmp_path, lambda rows: rows.slice(0, 8).set_column(at, column, pa.array(values))  # noqa: B023
        )  # fmt: skip
        with pytest.raises(parquet.NoSampleFile, match="is damaged"):
            parquet.look(path)


@pytest.mark.parametrize(
    "numbers",
    [lambda there: there.take(pa.array([*range(1, len(there)), 0])), lambda there: pa.array([7] * len(there), "int64"),
     lambda there: pa.array([None, *there.to_pylist()[1:]], "int64"), lambda there: there.cast("string"),
     lambda there: pa.array([*there.to_pylist()[:-1], there[0].as_py()], "int64")],
    ids=["another's", "nobody's", "none", "texts", "one row"],
)  # fmt: skip
def test_numbers_that_do_not_stand_for_what_the_rows_are_of(
    tmp_path: Path, numbers: Callable[[pa.ChunkedArray], pa.Array]
) -> None:
    path = written(tmp_path, lambda rows: with_courses(rows, numbers(rows[courses.COLUMN])))
    with pytest.raises(parquet.NoSampleFile, match="is damaged: its column course does not stand for what its rows"):
        parquet.look(path)


def test_the_column_twice_is_damage(tmp_path: Path) -> None:
    path = written(tmp_path, lambda rows: rows.append_column(courses.COLUMN, rows[courses.COLUMN]))
    with pytest.raises(parquet.NoSampleFile, match="is damaged"):
        parquet.look(path)


def test_what_a_file_says_of_all_its_rows_is_looked_at_where_numbers_do_not_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the statistics of a column are cut short by some."""
    whole = written(tmp_path)
    monkeypatch.setattr(courses, "_constants", lambda file: {"member_guid": "g"})
    assert all(one.course for one in parquet.look(whole))


def test_rows_in_any_order_agree(tmp_path: Path) -> None:
    """Nobody has to sort them: it is what is in each row that counts."""
    path = written(tmp_path, lambda rows: rows.sort_by("mono_us"))
    assert all(one.course for one in parquet.look(path))


def test_the_ledger_knows_which_files_have_them(tmp_path: Path) -> None:
    """One of before, that did not look for them, says that none has, so that these are read by their names."""
    whole = written(tmp_path)
    told = parquet.look(whole)
    ledger = Ledger()
    ledger.take([(("new", 1, 1), told)], 10**18)
    bare = parquet.look(written(tmp_path, lambda rows: rows.drop_columns([courses.COLUMN])))
    ledger.take([(("old", 1, 1), bare)], 10**18)
    ledger.save(tmp_path / "state")
    found = Ledger.load(tmp_path / "state").files
    assert found == ledger.files
    flags = {name: {one.course for one in of} for (name, *_), of in found.items()}
    assert flags == {"new": {True}, "old": {False}}
    for name in ("files", "starts"):
        path = tmp_path / "state" / f"{name}.parquet"
        rows = pq.read_table(path)
        if name == "files":
            texts = [text.replace("[true,", "[").replace("[false,", "[") for text in rows["stretches"].to_pylist()]
            rows = rows.set_column(3, "stretches", pa.array(texts))
        pq.write_table(rows.replace_schema_metadata({b"frs.summary": b"1"}), path)
    before = Ledger.load(tmp_path / "state").files
    assert before == ledger.files
    assert not any(one.course for of in before.values() for one in of)
