"""Where keys stand in a TOML file."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from config.positions import dotted, key_lines, line_of
from config.write import quoted, with_number

DOCUMENT = (
    '''\
# a comment with [brackets] = and "quotes
one = 1
"two words" = 'it''s' # ]
three.four = """
not = a key
[nor = a table]
\\""" still """
five = [ # [
  1, "a]b",
  { six = 6, seven = [7,
  8] },
]

[table]
key = 2020-01-01 00:00:00 # "
[table."sub.table"]
key = '''
    + "'''\n[no]\n'''"
    + """

[[array]]
x = 1
[array.sub]
y = 2
[[array.inner]]
z = 3
[[array]]
x = 4
[[array.inner]]
[[array.inner]]
z = 5
"""
)
DOCUMENT = DOCUMENT.replace("'it''s'", "'its'")


def test_every_kind_of_key_is_found() -> None:
    tomllib.loads(DOCUMENT)
    lines = key_lines(DOCUMENT)
    texts = DOCUMENT.splitlines()
    expected = {
        ("one",): "one = 1",
        ("two words",): '"two words"',
        ("three",): "three.four",
        ("three", "four"): "three.four",
        ("five",): "five = [",
        ("five", 1): '  1, "a]b"',
        ("five", 2): "  { six",
        ("five", 2, "six"): "  { six",
        ("five", 2, "seven", 1): "  8]",
        ("table",): "[table]",
        ("table", "key"): "key = 2020",
        ("table", "sub.table"): '[table."sub',
        ("table", "sub.table", "key"): "key = '''",
        ("array", 0, "sub", "y"): "y = 2",
        ("array", 0, "inner", 0, "z"): "z = 3",
        ("array", 1, "x"): "x = 4",
        ("array", 1, "inner", 1, "z"): "z = 5",
    }
    for path, text in expected.items():
        assert texts[lines[path] - 1].startswith(text), path
    assert ("not",) not in lines
    assert ("no",) not in lines


def test_an_absent_key_is_where_its_table_is() -> None:
    lines = key_lines("[a]\nb = 1\n\n[[c]]\nd = 1\n")
    assert line_of(lines, ("a", "x")) == 1
    assert line_of(lines, ("c", 0, "x")) == 4
    assert line_of(lines, ("x",)) is None


def test_a_path_as_people_write_it() -> None:
    assert dotted(("set", 0, "member", 1, "guid")) == "set[0].member[1].guid"
    assert dotted(("a b", "c")) == '"a b".c'


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.integers(-(2**40), 2**40) | st.booleans() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[ # [\n" + ",\n".join(toml(one) for one in value) + "\n]"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else str(value)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_every_key_of_any_document_is_found_on_its_line(values: dict[str, object]) -> None:
    text = "\n".join(f"{quoted(key)} = {toml(value)}" for key, value in values.items())
    assert tomllib.loads(text) == values
    lines = key_lines(text)
    for key, value in values.items():
        assert text.split("\n")[lines[(key,)] - 1].startswith(f"{quoted(key)} = ")
        if isinstance(value, list):
            assert {path[1] for path in lines if len(path) == 2 and path[0] == key} == set(range(len(value)))
        elif isinstance(value, dict):
            assert {path[1] for path in lines if len(path) == 2 and path[0] == key} == set(value)


def test_one_number_is_changed_and_nothing_else() -> None:
    text = "port = 1\n[dashboard]\nport = 2  # mine\n"
    assert with_number(text, ("dashboard", "port"), 30) == "port = 1\n[dashboard]\nport = 30  # mine\n"
    assert with_number(text, ("dashboard", "host"), 30) is None
    assert with_number('[dashboard]\nport = "x"\n', ("dashboard", "port"), 30) is None
    assert with_number("dashboard = { port = 1 }\n", ("dashboard", "port"), 30) is None
