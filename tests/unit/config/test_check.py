"""Roots that cannot be replicated are refused before anything starts."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from config.check import check_listen, check_roots
from config.errors import ConfigError
from config.load import load_agent_config
from tests.unit.config.member_files import AGENT, TOPOLOGY, write

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1

TWO = TOPOLOGY + TOPOLOGY.replace("11111111", "22222222").replace('"docs"', '"other"')


def refusal(path: Path) -> ConfigError:
    config = load_agent_config(path)
    with pytest.raises(ConfigError) as caught:
        check_roots(config)
    return caught.value


def two_roots(folder: Path, first: str, second: str) -> Path:
    agent = AGENT.replace('"root"', f'"{first}"') + f'\n[[set]]\nname = "other"\nroot = "{second}"\n'
    return write(folder, topology=TWO, agent=agent)


def test_a_good_root_passes(tmp_path: Path) -> None:
    check_roots(load_agent_config(write(tmp_path)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_host_with_an_address_passes(tmp_path: Path, host: str) -> None:
    check_listen(load_agent_config(write(tmp_path, agent=f'{AGENT}\n[listen]\nhost = "{host}"\n')))


def test_a_host_to_listen_on_without_an_address(tmp_path: Path) -> None:
    """An address with a scope that is not there: no name server is asked."""
    config = load_agent_config(write(tmp_path, agent=f'{AGENT}\n[listen]\nhost = "fe80::1%nowhere"\n'))
    with pytest.raises(ConfigError) as caught:
        check_listen(config)
    error = caught.value
    assert (error.file, error.line, error.key) == (tmp_path / "agent.toml", 11, "listen.host")
    assert 'no address is found of the host "fe80::1%nowhere" for this agent' in error.message
    assert 'name an address of this host, or "0.0.0.0" for all' in error.message


def test_a_host_of_the_topology_without_an_address(tmp_path: Path) -> None:
    config = load_agent_config(write(tmp_path, topology=TOPOLOGY.replace('"host-a"', '"fe80::1%nowhere"')))
    with pytest.raises(ConfigError, match=f"which the member a has in {tmp_path / 'topology.toml'}") as caught:
        check_listen(config)
    assert caught.value.key == "listen.host"


def test_a_name_server_that_does_not_answer_now_is_no_fault_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", busy)
    check_listen(load_agent_config(write(tmp_path)))


def test_two_good_roots_pass(tmp_path: Path) -> None:
    (tmp_path / "root2").mkdir()
    check_roots(load_agent_config(two_roots(tmp_path, "root", "root2")))


def test_an_absent_root(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, agent=AGENT.replace('"root"', '"nowhere"')))
    assert (error.file, error.line, error.key) == (tmp_path / "agent.toml", 8, "set[0].root")
    assert f"{tmp_path / 'nowhere'} does not exist" in error.message


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in refusal(write(tmp_path, agent=AGENT.replace('"root"', '"file"'))).message


def test_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert "does not exist" in refusal(write(tmp_path, agent=AGENT.replace('"root"', '"link"'))).message


@pytest.mark.parametrize("root", ["/proc", "/proc/sys", "/sys", "/sys/kernel", "/dev", "/dev/pts", "link"])
def test_a_root_where_the_kernel_shows_itself(tmp_path: Path, root: str) -> None:
    """/dev is writable for root, who must not replicate the devices all the same."""
    (tmp_path / "link").symlink_to("/dev")
    error = refusal(write(tmp_path, agent=AGENT.replace('"root"', f'"{root}"')))
    assert (error.file, error.line, error.key) == (tmp_path / "agent.toml", 8, "set[0].root")
    assert f"{tmp_path / root} is a place of the kernel" in error.message
    assert not error.others


@pytest.mark.parametrize("root", ["/", "//", "/usr/..", "link"])
def test_the_root_of_the_whole_file_system(tmp_path: Path, root: str) -> None:
    (tmp_path / "link").symlink_to("/")
    error = refusal(write(tmp_path, agent=AGENT.replace('"root"', f'"{root}"')))
    assert (error.line, error.key) == (8, "set[0].root")
    assert "is the root of the whole file system; name a folder" in error.message


def test_shared_memory_is_a_place_for_files(tmp_path: Path) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("nothing can be written in /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        check_roots(load_agent_config(write(tmp_path, agent=AGENT.replace('"root"', f'"{root}"'))))


def test_a_root_that_this_user_may_not_write(tmp_path: Path) -> None:
    """As any user: the check runs in a process that has laid down what lets root ignore modes."""
    path = write(tmp_path)
    program = (
        "import sys; from config.check import *; from config.load import *; check_roots(load_agent_config(sys.argv[1]))"
    )

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, str(path)],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0),
        )

    assert check().returncode == 0
    (tmp_path / "root").chmod(0o555)
    assert f"the root {tmp_path / 'root'} is not writable" in check().stderr


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("root", "root/inner", "is inside the root"),
        ("root/inner", "root", "contains the root"),
        ("root", "root", "is also the root"),
        ("root", "link", "is also the root"),
        ("root", "link/inner", "is inside the root"),
        ("link/inner", "root", "contains the root"),
    ],
)
def test_roots_in_one_another(tmp_path: Path, first: str, second: str, message: str) -> None:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    error = refusal(two_roots(tmp_path, first, second))
    assert (error.line, error.key) == (12, "set[1].root")
    assert message in error.message
    assert '"docs"' in error.message


def test_names_that_only_begin_alike_are_not_in_one_another(tmp_path: Path) -> None:
    (tmp_path / "root2").mkdir()
    check_roots(load_agent_config(two_roots(tmp_path, "root2", "root")))


@pytest.mark.parametrize(
    ("state", "root", "message"),
    [
        ("root", "root", "is the state directory"),
        ("root/state", "root", "contains the state directory"),
        ("root/deep/not/yet", "root", "contains the state directory"),
        ("state", "state/root", "is inside the state directory"),
        ("link/state", "root", "contains the state directory"),
    ],
)
def test_the_state_directory_and_a_root(tmp_path: Path, state: str, root: str, message: str) -> None:
    (tmp_path / "state" / "root").mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    agent = AGENT.replace('"state"', f'"{state}"').replace('"root"', f'"{root}"')
    error = refusal(write(tmp_path, agent=agent))
    assert error.key == "set[0].root"
    assert message in error.message


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, agent=AGENT.replace('"state"', '"/proc/state"')))
    assert (error.line, error.key) == (3, "state")
    assert "is not writable" in error.message
    (tmp_path / "file").touch()
    error = refusal(write(tmp_path, agent=AGENT.replace('"state"', '"file/state"')))
    assert "is not a folder" in error.message


@pytest.mark.parametrize(("name", "what"), [("secret", "the secret"), ("topology", "the topology")])
def test_our_own_files_in_a_root(tmp_path: Path, name: str, what: str) -> None:
    path = write(tmp_path, agent=AGENT.replace(f'"{name}.toml"', f'"root/{name}.toml"'))
    (tmp_path / f"{name}.toml").rename(tmp_path / "root" / f"{name}.toml")
    error = refusal(path)
    assert f"contains {what}" in error.message


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ('[dashboard]\nhost = "0.0.0.0"\nport = 0\ncertificate = "c.pem"\nkey = "root/k.pem"\n', "the key"),
        ('[directory]\nrun = "root/directory.toml"\n', "the configuration of the directory server"),
    ],
)
def test_other_keys_in_a_root(tmp_path: Path, table: str, what: str) -> None:
    """The key of a directory server lies beside its configuration."""
    error = refusal(write(tmp_path, agent=f"{AGENT}\n{table}"))
    assert f"contains {what}" in error.message


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    error = refusal(two_roots(tmp_path, "nowhere", "nor-here"))
    assert [one.line for one in (error, *error.others)] == [8, 12]
