"""The race campaign: unprivileged users exchange what is in a replica tree, while an agent works on it as root.

layout      the names that everybody works on, and who owns what
kernel      calls that Python lacks: renameat2, inotify, dropping privileges
safely      the tree by open folders, no link followed: for the test itself, which is root too
decoys      what the users put in the place of what the agent expects
attacker    one user: a process that has given up root and exchanges names as fast as it can
board       what attackers and campaign tell each other, in shared memory
outside     canaries outside the replica tree, and the witness of everything that happens to them
driver      change orders of every kind: an editor on the member that nobody attacks
judge       what must be true of the trees and of the members' own files afterwards
site        the members, their file systems, their restarts
rounds      variants of all that, and what happens in each
campaign    the command `python -m tests.race`
"""
