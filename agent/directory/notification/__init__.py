"""How the owner of an object hears that it changed ([MS-MQCN]): messages, when they are acted on, their queue."""
