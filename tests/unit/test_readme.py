"""README's chapter "What is replicated": each statement has a test that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAIR = "localchanges/test_what_is_replicated.py"

#: What the chapter says, in order, and the tests (below tests/) that show it.
SHOWN: dict[str, tuple[str, ...]] = {
    "Regular files, folders and symbolic links with content, name,": (
        f"{PAIR}::test_all_that_a_file_has",
        "system/test_replicate_tree.py::test_names_and_kinds_of_every_sort",
        "fidelity/test_fidelity_short.py::test_other_programs_find_no_difference",
    ),
    "owner, group, mode, POSIX ACL, modification time (of files and links to the nanosecond), user attributes,": (
        f"{PAIR}::test_all_that_a_file_has",
        f"{PAIR}::test_each_of_it_changes_alone",
        "fidelity/test_fidelity_short.py::test_other_programs_find_no_difference",
    ),
    "and holes.": (
        f"{PAIR}::test_holes_stay_holes",
        f"{PAIR}::test_a_hole_that_is_punched_later_is_one_on_the_others",
    ),
    "A change is sent after the file has been quiet for 3 seconds,": (
        "unit/config/test_load.py::test_a_configuration_is_read_with_its_defaults",
        f"{PAIR}::test_a_file_is_sent_when_it_has_been_quiet",
    ),
    "or after 30 where it never is;": (
        "unit/journal/test_aging.py"
        "::test_a_file_that_never_rests_is_told_of_ten_times_the_aging_after_its_first_change",
        "localchanges/test_limits.py::test_a_file_that_never_rests_is_sent_all_the_same",
    ),
    "one that the kernel tells nobody of (through a hard link outside the root, or a memory mapping) when the hourly "
    "scan finds it.": (
        "localchanges/test_periodic_scan.py::test_a_write_that_no_event_tells_of",
        "unit/config/test_load.py::test_a_configuration_is_read_with_its_defaults",
    ),
    "Names are bytes, in any locale.": (
        "system/test_locales.py::test_members_in_other_locales",
        "system/test_replicate_tree.py::test_names_and_kinds_of_every_sort",
    ),
    "Not replicated: sockets, FIFOs and devices (skipped),": (f"{PAIR}::test_sockets_fifos_and_devices_are_left_out",),
    "hard links as links (each name becomes a file),": (
        f"{PAIR}::test_each_name_of_a_hard_link_is_a_file",
        "system/test_replicate_tree.py::test_all_names_of_a_hard_linked_file_follow_a_change",
    ),
    "access times, the flags of chattr(1), `security.*` and `trusted.*` attributes,": (
        f"{PAIR}::test_what_a_host_keeps_for_itself",
    ),
    "the modification time that a folder gets from changes inside it": (
        f"{PAIR}::test_what_changes_in_a_folder_leaves_its_time_alone_elsewhere",
    ),
    "set-user-ID and set-group-ID bits of files, where the file was not here with them, of the same owner or group, "
    "before.": ("unit/test_trust.py::test_set_id_bits_are_taken_over_where_they_were_before",),
    "They go on the others, too, when the file is edited where it is without, unless only the agent's own user can "
    "write to it there": (
        "unit/test_trust.py::test_refused_bits_are_sent_on_with_the_content_that_they_came_with",
        "unit/staging/test_unstored.py::test_what_was_not_changed_is_the_others",
        "system/test_filesystems.py::test_edits_on_another_file_system",
    ),
    "to a member whose file system or user cannot have them: owners, modes, access control lists, user attributes, the "
    "parts of a time,": (
        "unit/staging/test_unstored.py::test_a_file_edited_elsewhere_keeps_what_it_had",
        "system/test_filesystems.py::test_edits_on_another_file_system",
        "system/test_filesystems.py::test_edits_where_the_agent_is_an_ordinary_user",
    ),
    "symbolic links,": (f"{PAIR}::test_a_symbolic_link_where_there_can_be_none",),
    "names that it refuses.": ("localchanges/test_limits.py::test_a_name_that_the_file_system_refuses",),
    "The others keep theirs, whoever edits the file where they are missing": (
        "unit/staging/test_unstored.py::test_a_file_edited_elsewhere_keeps_what_it_had",
        "system/test_filesystems.py::test_edits_on_another_file_system",
        "system/test_filesystems.py::test_edits_where_the_agent_is_an_ordinary_user",
    ),
    "what has a name in the root that begins with `.frs-preinstall` or `frs-swap-`,": (
        "system/test_identity.py::test_a_users_file_at_a_name_of_the_agents_own",
        "unit/journal/test_not_replicated.py::test_of_a_user",
        "unit/journal/test_not_replicated.py::test_are_names_like_any_other_below",
    ),
    "and attributes whose names begin with `user.frs.`: these are the agent's own": (
        "unit/staging/test_stage.py::test_the_agents_attributes_do_not_count",
        "unit/staging/test_stage.py::test_attributes",
    ),
    "the attribute `user.DOSATTRIB`, in which Samba keeps what Windows has beside: what it says is replicated": (
        "unit/staging/test_dosattrib.py::test_what_a_client_of_samba_sets_is_sent_on_and_its_attribute_is_not",
    ),
    "what is mounted in the root": (
        f"{PAIR}::test_what_is_mounted_in_the_root_is_neither_sent_nor_replaced",
        "unit/journal/test_not_replicated.py::test_mounted_folder_is_not_crossed",
        "localchanges/test_waiting.py::test_a_folder_that_something_is_mounted_over",
    ),
    "what lies so deep that its whole path has more than 4095 bytes where it is made, which no program can be told at "
    "once (the log says so)": (
        f"{PAIR}::test_a_path_may_have_4095_bytes",
        f"{PAIR}::test_a_longer_root_takes_what_has_a_path_too_long_there",
        "system/test_local_changes.py::test_what_is_too_deep_in_the_tree_is_left_alone_and_does_not_keep_the_rest_waiting",
    ),
    "files and symbolic links whose names match the set's `file_filter`, which `frs init` sets to `*.tmp`, `*.bak` and "
    "`~*`, and folders, with all that is in them, whose names match its `directory_filter`, which is empty at first.": (
        "localchanges/test_filters.py::test_filters_are_for_what_they_are_named_after",
        "unit/journal/test_not_replicated.py::test_each_kind_has_its_own_filter",
        "unit/cli/test_init.py::test_the_first_member",
    ),
    "Both are in topology.toml, and upper and lower case are the same to them.": (
        "localchanges/test_filters.py::test_filters_are_for_what_they_are_named_after",
        "unit/test_excluded.py::test_by_name_and_kind",
    ),
    "A folder that was removed elsewhere and holds such things here comes back after some minutes": (
        "simulation/test_conflicts.py::test_a_folder_that_cannot_be_removed_for_what_is_excluded_comes_back",
        "localchanges/test_waiting.py::test_a_folder_that_holds_what_a_filter_excludes_comes_back",
    ),
}


def chapter() -> str:
    """The words of the chapter, without bullets and without what refers to other pages."""
    text = (REPOSITORY / "README.md").read_text()
    text = text[text.index("## What is replicated\n") :].partition("\n")[2]
    text = re.sub(r"\s*\(\[[^]]*\]\([^)]*\)\)", "", text[: text.index("\n## ")])
    return " ".join(re.sub(r"^- ", "", text, flags=re.MULTILINE).split())


def test_every_statement_has_its_tests() -> None:
    assert chapter() == " ".join(SHOWN)


@pytest.mark.parametrize("test", sorted({test for tests in SHOWN.values() for test in tests}))
def test_there_is_such_a_test(test: str) -> None:
    module, _, name = test.partition("::")
    assert re.search(rf"^ *(async )?def {name}\(", (REPOSITORY / "tests" / module).read_text(), re.MULTILINE)
