"""What a directory holds: object types, their properties, values ([MS-MQDS] 2.2.8-2.2.10). No I/O, no clock."""
