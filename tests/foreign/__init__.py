"""A partner of a real member that has nothing of this project: its DCE/RPC and NTLM are impacket's, its LZNT1 that of
dissect.util, libfwnt and ntcompress, and the packets and staging files are written here from the text of [MS-FRS1].

`packets` and `stages` are bytes, `association` is RPC both ways, `partner` the replication partner, `site` the member
that it talks to; `stubs` has both interfaces for impacket, `scapy_calls` calls them with scapy and scapy-rpc.
test_nothing_of_ours holds them to importing nothing of this project.
"""
