"""What stands in a member's files arrives; what is wrong is named with file, line and key."""

from __future__ import annotations

import importlib.util
import os
import uuid
from pathlib import Path

import pytest

from config.credentials import load_secret
from config.errors import ConfigError
from config.load import load_agent_config
from config.model import Connection, DashboardTls, Secret
from config.topologyfile import parse_topology
from tests.unit.config.member_files import AGENT, SECRET, TOPOLOGY, fault, write

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def guid(last: str) -> bytes:
    return uuid.UUID(f"11111111-0000-4000-8000-0000000000{last}").bytes_le


def test_a_configuration_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load_agent_config(write(tmp_path))
    (local,) = config.sets
    assert config.path == tmp_path / "agent.toml"
    assert config.topology_path == tmp_path / "topology.toml"
    assert config.secret_path == tmp_path / "secret.toml"
    assert config.member_name == "a"
    assert (config.listen_host, config.port) == ("host-a", 5001)
    assert config.state_dir == tmp_path / "state"
    assert config.credential == Secret("FRS", "frs", 'p"w')
    assert config.dashboard_port is None
    assert (config.aging_s, config.sample_interval_s, config.workers, config.fsync) == (3.0, 5.0, 4, True)
    assert config.scan_interval_s == 3600
    assert (config.fleet, config.samples_quota_bytes) == ("frs", 512 << 20)
    assert config.samples_store is None
    assert (config.keep_seconds_days, config.keep_minutes_days, config.keep_hours_days) == (1.0, 30.0, 365.0)
    assert (config.compression, config.log_level, config.max_clock_skew_s) == ("auto", "info", 1800.0)
    assert (config.deleted_quota_bytes, config.keep_deleted_days, config.missing_percent) == (4 << 30, 30.0, 100.0)
    assert config.mass_deletion_count == 100
    assert (config.mass_deletion_percent, config.mass_deletion_window_s) == (10.0, 60.0)
    assert local.root == tmp_path / "root"
    assert local.state_dir == tmp_path / "state" / "sets" / "11111111-0000-4000-8000-000000000001"
    assert local.staging_quota_bytes == 4 << 30
    assert local.member.guid == guid("0a")
    assert local.set.type == "other"
    assert local.set.connections == (
        Connection(guid("ab"), "a->b", "a", "b", priority=7),
        Connection(guid("ba"), "b->a", "b", "a", priority=2),
    )
    assert [c.key for c in local.set.inbound("a")] == ["b->a"]
    assert [c.key for c in local.set.outbound("a")] == ["a->b"]


@pytest.mark.parametrize("given", ['certificate = "c.pem"', 'key = "k.pem"', 'client_ca = "ca.pem"'])
def test_tls_of_the_dashboard_takes_a_certificate_and_its_key(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match="TLS takes a certificate and its key"):
        load_agent_config(write(tmp_path, agent=f"{AGENT}[dashboard]\nport = 0\n{given}\n"))


def test_all_keys_of_agent_toml(tmp_path: Path) -> None:
    agent = AGENT.replace('root = "root"', 'root = "/srv/docs"\nstaging_quota = "1.5 GiB"').replace(
        'state = "state"', 'state = "/var/lib/frs"\npid_file = "run/pid"'
    )
    agent += """
[listen]
host = "0.0.0.0"
port = 0
[dashboard]
host = "::1"
port = 8080
certificate = "tls/cert.pem"
key = "tls/key.pem"
client_ca = "/etc/ssl/ca.pem"
host_names = ["files.example"]
[log]
level = "debug"
[replication]
aging = 1
scan_interval = 0
compression = "zstd"
fsync = false
workers = 9
kept_quota = "2 GiB"
deleted_quota = "1 MiB"
keep_deleted_days = 0
missing_percent = 50
mass_deletion_count = 7
mass_deletion_percent = 0.5
mass_deletion_window = 10
set_id = "never"
max_clock_skew = 60
max_retries = 5
max_retry_days = 0.5
outbound_log_days = 1
tombstone_days = 30
[counters]
sample_interval = 0.5
fleet = "branch offices"
samples_quota = "2 GiB"
keep_seconds_days = 0.5
keep_minutes_days = 7
keep_hours_days = 3650
samples_store = "s3://samples/fleets?region=eu-central-1"
"""
    config = load_agent_config(write(tmp_path, agent=agent))
    assert config.sets[0].root == Path("/srv/docs")
    assert config.sets[0].staging_quota_bytes == 3 << 29
    assert config.state_dir == Path("/var/lib/frs")
    assert config.pid_file == tmp_path / "run" / "pid"
    assert (config.listen_host, config.port) == ("0.0.0.0", 0)
    assert (config.dashboard_host, config.dashboard_port) == ("::1", 8080)
    tls = DashboardTls(tmp_path / "tls" / "cert.pem", tmp_path / "tls" / "key.pem", Path("/etc/ssl/ca.pem"))
    assert (config.dashboard_tls, config.dashboard_names) == (tls, ("files.example",))
    assert config.log_level == "debug"
    assert (config.aging_s, config.compression, config.fsync, config.workers) == (1.0, "zstd", False, 9)
    assert (config.max_clock_skew_s, config.sample_interval_s, config.scan_interval_s) == (60.0, 0.5, 0.0)
    assert config.kept_quota_bytes == 2 << 30
    assert (config.fleet, config.samples_quota_bytes) == ("branch offices", 2 << 30)
    assert (config.keep_seconds_days, config.keep_minutes_days, config.keep_hours_days) == (0.5, 7.0, 3650.0)
    assert (config.deleted_quota_bytes, config.keep_deleted_days, config.missing_percent) == (1 << 20, 0.0, 50.0)
    assert config.samples_store == "s3://samples/fleets?region=eu-central-1"
    assert config.mass_deletion_count == 7
    assert (config.mass_deletion_percent, config.mass_deletion_window_s) == (0.5, 10.0)
    assert config.set_id == "never"
    assert (config.max_retries, config.max_retry_days) == (5, 0.5)
    assert (config.outbound_log_days, config.tombstone_days) == (1.0, 30.0)


def test_deletions_are_remembered_at_least_as_long_as_the_log(tmp_path: Path) -> None:
    agent = AGENT + "[replication]\noutbound_log_days = 10\ntombstone_days = 9\n"
    text = str(fault(write(tmp_path, agent=agent)))
    assert "replication.tombstone_days" in text
    assert "10 days" in text


def test_a_connection_without_schedule_has_the_one_of_its_set(tmp_path: Path) -> None:
    topology = TOPOLOGY.replace('primary = "a"', f'primary = "a"\nschedule = "{"f0" * 84}"').replace(
        "priority = 2", f'schedule = """\n{"00" * 42}\n{"ff" * 42}"""\nignore_schedule = true\nenabled = false'
    )
    first, second = load_agent_config(write(tmp_path, topology=topology)).sets[0].set.connections
    assert first.schedule == b"\xf0" * 84
    assert second.schedule == b"\0" * 42 + b"\xff" * 42
    assert (second.ignore_schedule, second.enabled) == (True, False)


AGENT_FAULTS = {
    "unknown key": ('state = "state"', 'state = "state"\nstat = 1', 4, "stat", 'did you mean "state"?'),
    "unknown key in a set": ('root = "root"', 'root = "root"\nrot = 1', 9, "set[0].rot", 'did you mean "root"?'),
    "unknown key in a table": (
        'root = "root"', 'root = "root"\n[log]\nlevl = "info"', 10, "log.levl", 'did you mean "level"?',
    ),
    "key far from any": ('state = "state"', 'state = "state"\nzzz = 1', 4, "zzz", "known here: active_directory, counters, "),  # noqa: E501
    "missing": ('root = "root"', "", 6, "set[0].root", "is missing; add root"),
    "no set": ('[[set]]\nname = "docs"\nroot = "root"', "set = []", 6, "set", "must not be empty"),
    "missing at the top": ('member = "a"', "", None, "member", "is missing; add member"),
    "not a text": ('root = "root"', "root = 5", 8, "set[0].root", "must be a text in quotes, not 5"),
    "not a table": ('root = "root"', 'root = "root"\n[[log]]\nlevel = "info"', 9, "log", "must be a table"),
    "no store": (
        'root = "root"', 'root = "root"\n[counters]\nsamples_store = "samples"', 10, "counters.samples_store",
        "must be a URL such as s3://bucket/folder",
    ),
    "a password in a store": (
        'root = "root"', 'root = "root"\n[counters]\nsamples_store = "s3://me:pw@b/x"', 10, "counters.samples_store",
        "must hold no user name and no password",
    ),
    "empty path": ('root = "root"', 'root = ""', 8, "set[0].root", "must be a path"),
    "port too high": (
        'root = "root"', 'root = "root"\nlisten = 1\n[listen]\nport = 65536'.replace("listen = 1\n", ""),
        10, "listen.port", "less than or equal to 65535, not 65536",
    ),
    "port is a text": ('root = "root"', 'root = "root"\n[listen]\nport = "x"', 10, "listen.port", "a whole number"),
    "bad choice": (
        'root = "root"', 'root = "root"\n[replication]\ncompression = "gzip"',
        10, "replication.compression", "must be one of 'auto', 'lznt1', 'zstd' or 'none', not 'gzip'",
    ),
    "set-id bits": (
        'root = "root"', 'root = "root"\n[replication]\nset_id = "root"',
        10, "replication.set_id", "must be one of 'same-owner', 'always' or 'never', not 'root'",
    ),
    "negative time": ('root = "root"', 'root = "root"\n[replication]\naging = -1', 10, "replication.aging", "greater"),
    "no loss may stop": (
        'root = "root"', 'root = "root"\n[replication]\nmissing_percent = 0',
        10, "replication.missing_percent", "greater than 0",
    ),
    "more than all": (
        'root = "root"', 'root = "root"\n[replication]\nmissing_percent = 100.5',
        10, "replication.missing_percent", "less than or equal to 100",
    ),
    "no percentage": (
        'root = "root"', 'root = "root"\n[replication]\nmass_deletion_percent = nan',
        10, "replication.mass_deletion_percent", "less than or equal to 100, not nan",
    ),
    "negative days": (
        'root = "root"', 'root = "root"\n[replication]\nkeep_deleted_days = -1',
        10, "replication.keep_deleted_days", "greater than or equal to 0",
    ),
    "no deletion is a mass": (
        'root = "root"', 'root = "root"\n[replication]\nmass_deletion_count = 0',
        10, "replication.mass_deletion_count", "greater than or equal to 1",
    ),
    "not a boolean": ('root = "root"', 'root = "root"\n[replication]\nfsync = 1', 10, "replication.fsync", "true or"),
    "bad size": ('root = "root"', 'root = "root"\nstaging_quota = "many"', 9, "set[0].staging_quota", '"4 GiB"'),
    "set twice": (
        'root = "root"', 'root = "root"\n[[set]]\nname = "docs"\nroot = "other"',
        10, "set[1].name", "the first is on line 7",
    ),
    "set unknown": ('name = "docs"', 'name = "doc"', 7, "set[0].name", 'did you mean "docs"?'),
    "member unknown": ('member = "a"', 'member = "c"', 1, "member", 'the set "docs" has no member "c"'),
    "topology absent": ('"topology.toml"', '"elsewhere.toml"', 2, "topology", "does not exist; copy it"),
    "secret absent": ('"secret.toml"', '"elsewhere.toml"', 4, "secret", "does not exist; copy it"),
    "syntax": ('state = "state"', "state = ", 3, "", "is not valid TOML"),
    "key twice": ('state = "state"', 'state = "state"\nstate = "x"', 4, "", "is not valid TOML"),
    "cut off": ('root = "root"', 'root = """', 8, "", "is not valid TOML"),
}  # fmt: skip


@pytest.mark.parametrize("what", AGENT_FAULTS)
def test_a_fault_in_agent_toml_is_named(tmp_path: Path, what: str) -> None:
    old, new, line, key, message = AGENT_FAULTS[what]
    assert old in AGENT
    error = fault(write(tmp_path, agent=AGENT.replace(old, new, 1)))
    assert error.file == tmp_path / "agent.toml"
    assert (error.line, error.key) == (line, key)
    assert message in error.message
    place = f"{error.file}:{line}: " if line is not None else f"{error.file}: "
    assert str(error).startswith(place + (f"{key}: " if key else ""))


TOPOLOGY_FAULTS = {
    "unknown key": ('primary = "a"', 'primary = "a"\nprimry = "b"', 5, "set[0].primry", 'did you mean "primary"?'),
    "set name": ('name = "docs"', 'name = "a/b"', 2, "set[0].name", "letters, digits"),
    "guid": ('"11111111-0000-4000-8000-00000000000b"', '"1111"', 14, "set[0].member[1].guid", "must be a GUID such as"),
    "zero guid": (
        '"11111111-0000-4000-8000-00000000000b"', '"00000000-0000-0000-0000-000000000000"',
        14, "set[0].member[1].guid", "zero GUID",
    ),
    "guid twice": (
        "8000-00000000000b", "8000-00000000000A", 14, "set[0].member[1].guid", "is already used on line 8",
    ),
    "guid of the set again": (
        "8000-0000000000ab", "8000-000000000001", 19, "set[0].connection[0].guid", "is already used on line 3",
    ),
    "member twice": ('name = "b"', 'name = "a"', 13, "set[0].member[1].name", "is already used on line 7"),
    "port twice": (
        'host = "host-b"\nport = 5002', 'host = "HOST-A"\nport = 5001',
        16, "set[0].member[1].port", "is already used on line 10",
    ),
    "port": ("port = 5002", "port = 0", 16, "set[0].member[1].port", "greater than or equal to 1, not 0"),
    "host": ('"host-b"', '"host b"', 15, "set[0].member[1].host", "must be a host name"),
    "host that none can have": ('"host-b"', '"host..b"', 15, "set[0].member[1].host", "must be a host name"),
    "primary unknown": ('primary = "a"', 'primary = "x"', 4, "set[0].primary", 'has no member "x"; known here: a, b'),
    "upstream unknown": ('upstream = "b"', 'upstream = "x"', 25, "set[0].connection[1].upstream", 'no member "x"'),
    "downstream unknown": (
        'downstream = "a"', 'downstream = "x"', 26, "set[0].connection[1].downstream", 'no member "x"',
    ),
    "own partner": (
        'downstream = "a"', 'downstream = "b"', 26, "set[0].connection[1].downstream", "cannot be its own partner",
    ),
    "connection twice": (
        'upstream = "b"\ndownstream = "a"', 'upstream = "a"\ndownstream = "b"',
        25, "set[0].connection[1].upstream", "is already used on line 20",
    ),
    "priority": ("priority = 2", "priority = 8", 27, "set[0].connection[1].priority", "less than or equal to 7"),
    "schedule": (
        "priority = 2", 'schedule = "ff"', 27, "set[0].connection[1].schedule", "must be 168 hexadecimal digits",
    ),
    "type": ('primary = "a"', 'primary = "a"\ntype = "dsf"', 5, "set[0].type", "'sysvol', 'enterprise' or 'other'"),
    "filter": ('primary = "a"', 'primary = "a"\nfile_filter = "*"', 5, "set[0].file_filter", "must be a list"),
    "element of a filter": (
        'primary = "a"', 'primary = "a"\nfile_filter = ["*.tmp",\n 5]', 6, "set[0].file_filter[1]", "a text in quotes",
    ),
    "syntax": ('primary = "a"', 'primary = "a', 4, "", "is not valid TOML"),
}  # fmt: skip


@pytest.mark.parametrize("what", TOPOLOGY_FAULTS)
def test_a_fault_in_topology_toml_is_named(tmp_path: Path, what: str) -> None:
    old, new, line, key, message = TOPOLOGY_FAULTS[what]
    assert old in TOPOLOGY
    error = fault(write(tmp_path, topology=TOPOLOGY.replace(old, new, 1)))
    assert error.file == tmp_path / "topology.toml"
    assert (error.line, error.key) == (line, key)
    assert message in error.message


SECOND_SET = TOPOLOGY.replace("11111111", "22222222").replace('"docs"', '"other"')


def test_two_sets_of_the_same_members(tmp_path: Path) -> None:
    agent = AGENT + '[[set]]\nname = "other"\nroot = "root2"\n'
    config = load_agent_config(write(tmp_path, topology=TOPOLOGY + SECOND_SET, agent=agent))
    assert [local.name for local in config.sets] == ["docs", "other"]
    assert len({local.state_dir for local in config.sets}) == 2


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ('state = "state"', 'state = "state"\n"a\\nb" = 1', r"'a\nb': is not a known key"),
        ('state = "state"', 'state = "state"\n"a\\u2028\\u001b[31mb" = 1', r"'a\u2028\x1b[31mb': is not a known key"),
        ('state = "state"', 'state = "state"\n"a b" = 1', '"a b": is not a known key'),
        ('name = "docs"', 'name = "do\\ncs"', r'no set of the topology is named "do\ncs"'),
        ('member = "a"', 'member = "a\\nb"', r'has no member "a\nb"'),
        ('"topology.toml"', '"else\\nwhere.toml"', r"/else\nwhere.toml does not exist"),
    ],
)
def test_a_fault_stays_on_one_line(tmp_path: Path, old: str, new: str, shown: str) -> None:
    """Whatever names stand in it: each line of what is said is one fault, and none can forge another."""
    assert old in AGENT
    error = fault(write(tmp_path, agent=AGENT.replace(old, new, 1)))
    assert shown in str(error)
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()


def test_two_sets_of_one_name(tmp_path: Path) -> None:
    error = fault(write(tmp_path, topology=TOPOLOGY + SECOND_SET.replace('"other"', '"docs"')))
    lines = len(TOPOLOGY.splitlines())
    assert (error.line, error.key) == (lines + 2, "set[1].name")
    assert "is already used on line 2" in error.message


def test_a_member_has_one_address_in_all_sets(tmp_path: Path) -> None:
    error = fault(write(tmp_path, topology=TOPOLOGY + SECOND_SET.replace("5002", "5003")))
    assert error.key == "set[1].member[1].host"
    assert "host-b port 5002" in error.message


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    topology = TOPOLOGY.replace('primary = "a"', 'primary = "x"').replace('upstream = "b"', 'upstream = "y"')
    error = fault(write(tmp_path, topology=topology))
    assert [other.line for other in error.others] == [25]
    assert len(str(error).splitlines()) == 2


def test_a_topology_that_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "topology.toml").write_bytes(b"# one\n# \xff\n")
    error = fault(path)
    assert (error.file, error.line) == (tmp_path / "topology.toml", 2)
    assert "UTF-8" in error.message


def test_an_agent_toml_that_is_absent(tmp_path: Path) -> None:
    error = fault(tmp_path / "agent.toml")
    assert (error.file, error.line) == (tmp_path / "agent.toml", None)
    assert "frs init" in error.message


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path)
    (tmp_path / "secret.toml").chmod(mode)
    error = fault(path)
    assert error.file == tmp_path / "secret.toml"
    assert f"mode {mode:04o}" in error.message
    assert f"chmod 600 {tmp_path / 'secret.toml'}" in error.message


def test_a_secret_that_its_owner_cannot_change_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "secret.toml").chmod(0o400)
    assert load_agent_config(path).credential.password == 'p"w'


@as_root
def test_a_secret_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    os.chown(tmp_path / "secret.toml", 65534, 0)
    error = fault(path)
    assert error.file == tmp_path / "secret.toml"
    assert "belongs to the user 65534" in error.message
    assert f"chown 0 {tmp_path / 'secret.toml'}" in error.message


def test_a_secret_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "secret.toml").rename(tmp_path / "real.toml")
    (tmp_path / "secret.toml").symlink_to("real.toml")
    assert "is a symbolic link" in fault(path).message


def test_the_secret_that_was_checked_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts another one at its name after each look at what is open."""
    write(tmp_path)
    fstat = os.fstat

    def fstat_and_swap(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if status.st_ino == before.st_ino:
            (tmp_path / "other.toml").write_text(SECRET.replace("frs", "mallory"))
            (tmp_path / "other.toml").rename(tmp_path / "secret.toml")
        return status

    before = (tmp_path / "secret.toml").stat()
    monkeypatch.setattr(os, "fstat", fstat_and_swap)
    assert load_secret(tmp_path / "secret.toml").user == "frs"
    assert "mallory" in (tmp_path / "secret.toml").read_text()


def test_a_secret_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "secret.toml").unlink()
    os.mkfifo(tmp_path / "secret.toml", 0o600)
    assert "regular file" in fault(path).message
    (tmp_path / "secret.toml").unlink()
    (tmp_path / "secret.toml").mkdir(0o600)
    assert "regular file" in fault(path).message


@pytest.mark.parametrize(
    ("old", "new", "line", "key"),
    [
        ('password = "p\\u0022w"', "", None, "password"),
        ('user = "frs"', 'user = ""', 2, "user"),
        ('user = "frs"', 'user = "frs"\nnote = "x"', 3, "note"),
    ],
)
def test_a_fault_in_the_secret_is_named(tmp_path: Path, old: str, new: str, line: int | None, key: str) -> None:
    error = fault(write(tmp_path, secret=SECRET.replace(old, new)))
    assert error.file == tmp_path / "secret.toml"
    assert (error.line, error.key) == (line, key)


def test_the_password_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path)
    assert 'p"w' not in repr(load_secret(tmp_path / "secret.toml"))
    assert 'p"w' not in repr(load_agent_config(tmp_path / "agent.toml"))


def test_a_member_may_have_no_port(tmp_path: Path) -> None:
    """Then its endpoint mapper knows; two on one host need two of these."""
    without = TOPOLOGY.replace("port = 5001\n", "").replace("port = 5002\n", "endpoint_mapper = 1135\n")
    members = parse_topology(Path("topology.toml"), without)[0].members
    assert [(one.port, one.endpoint_mapper) for one in members.values()] == [(0, 135), (0, 1135)]
    config = load_agent_config(write(tmp_path, topology=without))
    assert (config.port, config.endpoint_mapper_port) == (0, None)
    same = without.replace("host-b", "host-a").replace("endpoint_mapper = 1135\n", "")
    with pytest.raises(ConfigError, match="port 135 of host-a is already used"):
        parse_topology(Path("topology.toml"), same)


def test_a_store_of_another_kind_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AGENT + '[counters]\nsamples_store = "gs://samples/fleets"\n'
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fsspec" else real(name))
    text = str(fault(write(tmp_path, agent=agent)))
    assert "counters.samples_store" in text
    assert "pip install 'frs-agent[objectstore]'" in text


def test_what_is_secret_in_a_store_is_not_told(tmp_path: Path) -> None:
    for url in ("s3://me:hidden@bucket/x", "me:hidden@bucket", "sftp://me:hidden@host/x"):
        assert "hidden" not in str(fault(write(tmp_path, agent=f'{AGENT}[counters]\nsamples_store = "{url}"\n')))
