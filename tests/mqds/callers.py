"""Two clients of dscomm and dscomm2 with the same arguments: ours, and impacket's with types from the IDL."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from impacket.dcerpc.v5 import rpcrt
from impacket.dcerpc.v5.dtypes import NULL
from impacket.dcerpc.v5.rpcrt import DCERPCException

from agent.directory.mqds.client import MqdsClient, MqdsError
from agent.directory.mqds.methods import DSCOMM, DSCOMM2, METHODS
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcFault
from agent.rpc.security import Credential
from tests.mqds import idl

DOMAIN, USER, PASSWORD = "FRS", "admin", "päss wörd"
WHERE = {name: (interface, method.opnum) for interface, methods in METHODS.items() for name, method in methods.items()}


class Caller(Protocol):
    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        """A method; an error is MqdsError, a fault RpcFault."""

    async def close(self) -> None: ...


class Ours:
    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: dict[object, RpcClient] = {}

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        interface = WHERE[name][0]
        if interface not in self._clients:
            credential = Credential(DOMAIN, USER, PASSWORD)
            self._clients[interface] = await RpcClient.connect("127.0.0.1", self._port, interface, credential)
        return await MqdsClient(self._clients[interface], interface).call(name, **arguments)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


#: The arguments of ours by the names of the IDL.
_NAMES = {
    "type": "dwObjectType", "path": "pwcsPathName", "cp": "cp", "sd_length": "dwSDLength",
    "what": "SecurityInformation", "length": "nLength", "signature_size": "pdwServerSignatureSize", "room": "dwSize",
    "index": "pdwIndex", "ip": "fIP", "enterprise": "pguidEnterpriseId", "setup": "fSetupMode", "context": "dwContext",
    "most": "dwClientBuffMaxSize", "size": "dwClientBuffSize",
}  # fmt: skip


class Foreign:
    """Each call in a thread: impacket waits."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: dict[bytes, Any] = {}

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._call, name, arguments)

    async def close(self) -> None:
        for one in self._clients.values():
            await asyncio.to_thread(one.disconnect)

    def _call(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        ours, opnum = WHERE[name]
        interface = {DSCOMM: idl.DSCOMM, DSCOMM2: idl.DSCOMM2}[ours]
        if interface not in self._clients:
            self._clients[interface] = idl.client(self._port, DOMAIN, USER, PASSWORD, interface)
        asking, answering = idl.call_of(interface, opnum)
        request = asking()
        for argument, value in given.items():
            self._put(request, name, argument, value)
        if "token" in given:
            request.fields["pClientBuff"].fields["MaximumCount"] = given["most"]
        dce = self._clients[interface]
        try:
            dce.call(opnum, request)
            answer = answering(dce.recv())
        except DCERPCException as error:
            codes = {text: code for code, text in rpcrt.rpc_status_codes.items()}
            raise RpcFault(error.error_code or codes[str(error)]) from None
        found = self._plain(name, answer)
        if found.get("result", 0) >> 31:
            raise MqdsError(name, found["result"], found)
        return found

    def _put(self, request: Any, name: str, argument: str, value: Any) -> None:
        fields = {field for field, _ in type(request).structure}
        if argument == "ids":
            for one in value:
                number = idl.ULONG()
                number["Data"] = one
                request["aProp"].append(number)
        elif argument == "values":
            for vt, one in value:
                element = idl.PROPVARIANT()
                idl.fill(element, vt, one)
                request["apVar"].append(element)
        elif argument == "sd":
            field = "SecurityDescriptor" if name == "CreateObject" else "pSecurityDescriptor"
            request[field] = NULL if value is None else value
        elif argument == "guid":
            request["pObjGuid" if name == "CreateObject" else "pGuid"] = NULL if value is None else value
        elif argument in ("auth", "handle"):
            choice = ("phServerAuth", "pphServerAuth") if argument == "auth" else ("Handle", "phContext", "pHandle")
            (field,) = [one for one in choice if one in fields]
            request[field]["attributes"] = int.from_bytes(value[:4], "little")
            request[field]["uuid"] = value[4:]
        elif argument == "token":
            request["pClientBuff"] = value
        elif argument == "columns":
            request["pColumns"]["cCol"] = len(value)
            for one in value:
                number = idl.ULONG()
                number["Data"] = one
                request["pColumns"]["aCol"].append(number)
        elif argument == "restrictions":
            if value is None:
                request["pRestriction"] = NULL
                return
            request["pRestriction"]["cRes"] = len(value)
            for one in value:
                element = idl.PROPERTYRESTRICTION()
                element["rel"], element["prop"] = one.rel, one.prop
                idl.fill(element["prval"], *one.value)
                request["pRestriction"]["paPropRes"].append(element)
        elif argument == "sort":
            if value is None:
                request["pSort"] = NULL
                return
            request["pSort"]["cCol"] = len(value)
            for one in value:
                element = idl.SORTKEY()
                element["propColumn"], element["dwOrder"] = one.prop, one.descending
                request["pSort"]["aCol"].append(element)
        else:
            field = {
                ("LookupBegin", "context"): "pwcsContext", ("CreateServersCache", "servers"): "lplpSiteServers",
                ("GetGCListInDomain", "computer"): "lpwszComputerName",
                ("GetGCListInDomain", "domain"): "lpwszDomainName",
            }.get((name, argument), _NAMES.get(argument, ""))  # fmt: skip
            request[field] = NULL if value is None else value + "\0" if isinstance(value, str) else value

    @staticmethod
    def _plain(name: str, answer: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field, _ in type(answer).structure:
            value = answer[field]
            if field == "ErrorCode":
                found["result"] = value
            elif field == "apVar":
                found["values"] = [idl.plain(one) for one in value]
            elif field == "pbBuffer":
                found["values"] = (None, [idl.plain(one) for one in value])
            elif field == "dwOutSize":
                found["count"] = value
            elif field in ("pHandle", "phContext", "pphServerAuth"):
                handle = value["attributes"].to_bytes(4, "little") + value["uuid"]
                found["auth" if field == "pphServerAuth" else "handle"] = handle
            elif field == "pSecurityDescriptor":
                found["sd"] = b"".join(value)
            elif field == "lpnLengthNeeded":
                found["needed"] = value
            elif field == "pObjGuid":
                found["guid"] = value if value else None
            elif field in ("lplpSiteServers", "lplpwszGCList"):
                found["servers"] = value[:-1] if value else None
            elif field == "ppguidSites":
                found["sites"] = tuple(one["Data"] for one in value)
            elif field == "pdwServerSignatureSize":
                found["signature_size"] = value
        return found


async def status_of(calling: Coroutine[Any, Any, dict[str, Any]]) -> int:
    """The HRESULT, or the status of the fault, of a call; 0 where it succeeds."""
    try:
        await calling
    except (MqdsError, RpcFault) as error:
        return error.status
    return 0
