"""What a peer of the RPC server may cost: every bound in one place, each with its reason.

Where a bound is on something of which many want a share, whoever has most gives way first (agent.edge.places), by
address. Strangers, addresses of partners, and peers that showed in their bind that they have a key or the
secret (agent.rpc.proof) are counted apart, so that none of the first can take the room of the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from agent.rpc import constants as c


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are seconds, sizes bytes.

    Before the bind, when a connection costs a descriptor and no more (agent.edge.gate):
    """

    #: Connections that have not sent their bind. At 13,000 a second, which is what a host can flood another process
    #: with, each has 0.15 s before it gives way: a client that is there sends its bind at once.
    silent: int = 2048
    #: From the connection to the whole of its bind. A bind comes with the first packet that has content.
    first: float = 5.0
    #: A bind. One with a Kerberos ticket offered before NTLM is the largest that is met, with 4 to 12 KiB.
    bind: int = 16 * 1024

    # From the bind to the end of the authentication, for each of the three kinds of peers:

    #: Handshakes under way. A handshake takes some round trips: at 100 a second and 0.3 s each, 30.
    negotiating: int = 64
    #: Handshakes begun, per second and at once, of those that show no proof: of all of a kind, and of one address. One
    #: costs about a millisecond of the one thread that also replicates; and no secret is guessed at that rate.
    binds_per_second: float = 20.0
    binds_at_once: int = 60
    binds_of_one_per_second: float = 5.0
    binds_of_one_at_once: int = 30
    #: The same of those that do, who are our partners: all of a large set may come back at once; and of one of them, by
    #: its key, wherever it comes from (of those that have the secret alone, by address).
    proved_per_second: float = 200.0
    proved_at_once: int = 200
    proved_of_one_per_second: float = 20.0
    proved_of_one_at_once: int = 60
    #: By so many keys a second binds from addresses that are not known are looked at for that: a microsecond each.
    proofs_per_second: int = 100_000
    #: From the connection to a finished authentication.
    handshake: float = 10.0
    #: PDUs before that: bind, up to eight legs, and requests that come too early.
    handshake_pdus: int = 16

    # Those that are authenticated:

    #: Associations in all, and of one address. A member has two with each partner of each set; all members of a
    #: demonstration are at one address.
    established: int = 512
    of_one: int = 128
    #: An association that is full of others' gives way when it has said nothing for so long.
    spare: float = 60.0
    #: A PDU, and a whole request. FrsRpcSendCommPkt has up to 256 KiB (2.2.3.5) and little more; S_DSCreateObject a
    #: descriptor of up to 512 KiB beside the properties of an object.
    max_fragment: int = c.MAX_FRAGMENT
    max_request: int = 640 * 1024
    #: Requests of which fragments are missing, and requests that wait for the one before them.
    max_partial_calls: int = 16
    max_queued_calls: int = 64
    max_queued_bytes: int = 2 * 1024 * 1024
    #: What requests in fragments, requests that wait, and large receive buffers may have in all, and of one address.
    memory: int = 48 * 1024 * 1024
    memory_of_one: int = 16 * 1024 * 1024
    #: Presentation contexts of an association, and alter_context in its whole life. Clients send one for each
    #: interface they come to use, and one or two to authenticate.
    max_contexts: int = 32
    max_alters: int = 32
    #: PDUs of one association that are handled before others have their turn: 16 small calls take about a
    #: millisecond.
    turn: int = 16
    #: A message begun and not ended, or answers that are not read.
    stall: float = 60.0
    #: No message at all.
    idle: float = 3600.0

    @property
    def descriptors(self) -> int:
        """The most that the server can have open at once."""
        return 2 * self.silent + 3 * self.negotiating + self.established

    def within(self, descriptors: int) -> Limits:
        """These limits, made smaller where they would need more than so many descriptors."""
        if self.descriptors <= descriptors:
            return self
        share = descriptors / self.descriptors
        established, negotiating = max(8, int(self.established * share)), max(8, int(self.negotiating * share))
        return dataclasses.replace(
            self,
            silent=max(8, (descriptors - 3 * negotiating - established) // 2),
            negotiating=negotiating,
            established=established,
            of_one=max(8, int(self.of_one * share)),
        )


#: Those of the endpoint mapper, which is asked one short question and then left.
MAPPER_LIMITS = Limits(
    silent=256,
    established=64,
    of_one=16,
    spare=1.0,
    max_request=8192,
    memory=1024 * 1024,
    memory_of_one=256 * 1024,
    stall=10.0,
    idle=30.0,
)
