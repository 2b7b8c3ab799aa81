"""The directory's objects over RPC, one by one ([MS-MQDS]): the interfaces dscomm and dscomm2, both sides."""
