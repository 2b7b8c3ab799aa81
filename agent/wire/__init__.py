"""Bytes of [MS-FRS1] to objects and back, without I/O: packets, change orders, NDR stubs.

``packet`` holds the COMM_PACKET, ``elements`` the tables it walks by, ``change_order`` the change order and its
extensions, ``comm_packet`` the stubs of the frsrpc methods. All of them raise
``errors.WireError``, and nothing else, for what is not the protocol's.
"""
