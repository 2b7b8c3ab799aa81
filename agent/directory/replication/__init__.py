"""How directory servers keep the same objects ([MC-MQDSRP]): messages, and the rules. No I/O, no clock."""
