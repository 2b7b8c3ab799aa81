"""Finding a directory server ([MS-MQSD]): packets, the rules of client and server, and the sockets."""
