"""Numbers of the connection-oriented DCE/RPC protocol ([C706] chapter 12, [MS-RPCE] section 2.2)."""

from __future__ import annotations

from typing import Final

# PDU types, [C706] 12.6.4 and [MS-RPCE] 2.2.2.
REQUEST: Final = 0
RESPONSE: Final = 2
FAULT: Final = 3
BIND: Final = 11
BIND_ACK: Final = 12
BIND_NAK: Final = 13
ALTER_CONTEXT: Final = 14
ALTER_CONTEXT_RESP: Final = 15
AUTH3: Final = 16
SHUTDOWN: Final = 17
CO_CANCEL: Final = 18
ORPHANED: Final = 19

# PDU flags, [C706] 12.6.3.1. 0x04 means header signing in bind and alter_context ([MS-RPCE] 2.2.2.3).
PFC_FIRST_FRAG: Final = 0x01
PFC_LAST_FRAG: Final = 0x02
PFC_SUPPORT_HEADER_SIGN: Final = 0x04
PFC_CONC_MPX: Final = 0x10
PFC_DID_NOT_EXECUTE: Final = 0x20
PFC_MAYBE: Final = 0x40
PFC_OBJECT_UUID: Final = 0x80
PFC_WHOLE: Final = PFC_FIRST_FRAG | PFC_LAST_FRAG

# Authentication levels, [MS-RPCE] 2.2.1.1.8.
LEVEL_NONE: Final = 1
LEVEL_CONNECT: Final = 2
LEVEL_CALL: Final = 3
LEVEL_PKT: Final = 4
LEVEL_INTEGRITY: Final = 5
LEVEL_PRIVACY: Final = 6

# Security providers, [MS-RPCE] 2.2.1.1.7.
AUTH_NONE: Final = 0
AUTH_SPNEGO: Final = 9
AUTH_NTLM: Final = 10
AUTH_KERBEROS: Final = 16

# Results and reasons of presentation contexts, [C706] 12.6.3.1 and [MS-RPCE] 2.2.2.4.
RESULT_ACCEPTANCE: Final = 0
RESULT_PROVIDER_REJECTION: Final = 2
RESULT_NEGOTIATE_ACK: Final = 3
REASON_NOT_SPECIFIED: Final = 0
REASON_ABSTRACT_SYNTAX: Final = 1
REASON_TRANSFER_SYNTAXES: Final = 2
REASON_LOCAL_LIMIT: Final = 3

# bind_nak reasons, [C706] 12.6.3.1 and [MS-RPCE] 2.2.2.5.
NAK_NOT_SPECIFIED: Final = 0
NAK_LOCAL_LIMIT: Final = 2
NAK_PROTOCOL_VERSION: Final = 4
NAK_AUTH_TYPE: Final = 8
NAK_INVALID_CHECKSUM: Final = 9

# Fault status codes, [C706] appendix E and [MS-ERREF] 2.2.
ACCESS_DENIED: Final = 0x00000005
RPC_S_SEC_PKG_ERROR: Final = 0x00000721
RPC_X_BAD_STUB_DATA: Final = 0x000006F7
NCA_S_OP_RNG_ERROR: Final = 0x1C010002
NCA_S_UNK_IF: Final = 0x1C010003
NCA_S_PROTO_ERROR: Final = 0x1C01000B
NCA_S_FAULT_REMOTE_NO_MEMORY: Final = 0x1C00001B
NCA_S_FAULT_CONTEXT_MISMATCH: Final = 0x1C00001A
NCA_S_UNSUPPORTED_TYPE: Final = 0x1C000017
NCA_S_FAULT_CANCEL: Final = 0x1C00000D
NCA_S_FAULT_UNSPEC: Final = 0x1C000012
NCA_S_INVALID_PRES_CONTEXT_ID: Final = 0x1C00001C
NCA_S_SERVER_TOO_BUSY: Final = 0x1C010014

FAULT_NAMES: Final[dict[int, str]] = {
    ACCESS_DENIED: "access denied",
    RPC_S_SEC_PKG_ERROR: "security package error",
    RPC_X_BAD_STUB_DATA: "bad stub data",
    NCA_S_OP_RNG_ERROR: "operation number out of range",
    NCA_S_UNK_IF: "unknown interface",
    NCA_S_PROTO_ERROR: "protocol error",
    NCA_S_FAULT_REMOTE_NO_MEMORY: "remote out of memory",
    NCA_S_FAULT_CONTEXT_MISMATCH: "context mismatch",
    NCA_S_UNSUPPORTED_TYPE: "unsupported type",
    NCA_S_FAULT_CANCEL: "cancelled",
    NCA_S_FAULT_UNSPEC: "unspecified fault",
    NCA_S_INVALID_PRES_CONTEXT_ID: "invalid presentation context",
    NCA_S_SERVER_TOO_BUSY: "server too busy",
}

HEADER_SIZE: Final = 16
REQUEST_HEADER_SIZE: Final = 24
TRAILER_SIZE: Final = 8
MAX_FRAGMENT: Final = 65528  # the largest multiple of 8 that the 16-bit frag_length holds
DEFAULT_FRAGMENT: Final = 5840  # what Windows and Samba offer
MIN_FRAGMENT: Final = 1432  # MustRecvFragSize, [C706] 12.6.3.1
AUTH_ALIGN: Final = 16  # [MS-RPCE] 2.2.2.11: stub data is padded to 16 before the trailer
