"""A partner that has its own key and means harm, against two honest members: attacks, and a judge of what they cost.

campaign   the command line (script/hostile): one attack after the other, a table of what each did
trial      one attack: members started, a quiet phase, the attack, what is left afterwards
fleet      two real members, each on a small disk of its own, and the place of the third in their topology
probe      files written on one honest member and awaited on the other: the latency of honest replication
judge      memory, disk, descriptors and log of the honest members, and the bounds for all of it
report     the row of each attack as text and JSON
attacker   the process of the hostile partner; told by lines on its standard input what to do
partner    its sessions with the two members, and its own server
forge      change orders and staging files as no honest member makes them
raw        associations by hand, for what happens below packets
attacks/   the attacks
"""
