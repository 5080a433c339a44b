"""Access rules for tools: changed (50, 51, 53) and shown (52, 54), on the node that is asked.

Each member has files of its own (adr/0215). Who may ask is the guard's to say; a secret key is shown to nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from broker.access.changes import (
    AccountChange,
    Change,
    new_global_addresses,
    removal,
    version_of,
)
from broker.access.errors import AccessRulesError
from broker.access.plain_acl import ACCOUNTS, GLOBAL_ADDRESSES, AclFile
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.service.conclusions import RequestKind
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json

_log = logging.getLogger(__name__)

_HIDDEN: Final = "******"
_OFF: Final = "access control is off here (aclEnable=false): there are no rules"


class KeepRules(Protocol):
    """Keeps the access rules of this node."""

    @property
    def default_name(self) -> str:
        """The name of plain_acl.yml."""
        ...

    @property
    def files(self) -> Sequence[AclFile]:
        """The files as they hold."""
        ...

    def change(self, change: Change, done: Callable[[str | None], None]) -> None:
        """Make a change durable and go by it; call `done` with None, or with why nothing was changed."""
        ...


class AccessAdmin:
    """Answers 50 to 54; without `keeper` access control is off."""

    def __init__(
        self, keeper: KeepRules | None, *, cluster: str, broker_name: str, service_address: str
    ) -> None:
        self._keeper = keeper
        self._names = {
            "clusterName": cluster,
            "brokerName": broker_name,
            "brokerAddr": service_address,
        }

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, admin, here = RequestCode, RequestKind.ADMIN, Where.HERE
        return (
            Handler(code.UPDATE_AND_CREATE_ACL_CONFIG, self.put_account, admin, here),
            Handler(code.DELETE_ACL_CONFIG, self.delete_account, admin, here),
            Handler(code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, self.put_addresses, admin, here),
            Handler(code.GET_BROKER_CLUSTER_ACL_INFO, self.versions, RequestKind.READ, here),
            Handler(code.GET_BROKER_CLUSTER_ACL_CONFIG, self.show, RequestKind.READ, here),
        )

    def put_account(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_ACL_CONFIG; a field that is missing leaves what the account has.

        Raises:
            FieldError: a key is missing.
        """
        ext = command.ext
        members = {
            "whiteRemoteAddress": ext.get("whiteRemoteAddress"),
            "admin": str(fields.boolean(ext, "admin", default=False)).lower(),
            "defaultTopicPerm": ext.get("defaultTopicPerm") or None,
            "defaultGroupPerm": ext.get("defaultGroupPerm") or None,
            "topicPerms": _list(ext.get("topicPerms")),
            "groupPerms": _list(ext.get("groupPerms")),
        }
        wanted = AccountChange(
            fields.text(ext, "accessKey"), fields.text(ext, "secretKey"), members
        )
        self._change(request, lambda keeper: wanted.of(keeper.default_name))

    def delete_account(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_ACL_CONFIG.

        Raises:
            FieldError: the key is missing.
        """
        access_key = fields.text(command.ext, "accessKey")
        self._change(request, lambda _keeper: removal(access_key))

    def put_addresses(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_GLOBAL_WHITE_ADDRS_CONFIG.

        Raises:
            FieldError: the addresses are missing.
        """
        addresses = _list(fields.text(command.ext, "globalWhiteAddrs")) or []
        name = fields.optional_text(command.ext, "aclFileFullPath")
        self._change(
            request, lambda keeper: new_global_addresses(addresses, name or keeper.default_name)
        )

    def _change(self, request: PendingRequest, make: Callable[[KeepRules], Change]) -> None:
        """Have a change carried out, and answer with what became of it."""
        keeper = self._keeper
        if keeper is None:
            request.answer(ResponseCode.SYSTEM_ERROR, f"{_OFF} to be changed")
            return
        try:
            change = make(keeper)
        except AccessRulesError as error:
            request.answer(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {error}")
            return

        def done(problem: str | None) -> None:
            if problem is None:
                _log.warning(
                    "access rules were changed by %s (code %d)",
                    request.origin.address,
                    request.handler.code,
                )
                request.answer(ResponseCode.SUCCESS)
            else:
                request.answer(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {problem}"[:1024])

        keeper.change(change, done)

    def versions(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_CLUSTER_ACL_INFO."""
        if self._keeper is None:
            request.answer(ResponseCode.SYSTEM_ERROR, _OFF)
            return
        versions = {file.name: version_of(file) for file in self._keeper.files}
        of_default = versions.get(self._keeper.default_name, {"counter": 0, "timestamp": 0})
        ext = {
            "version": write_json(of_default).decode(),
            "allAclFileVersion": write_json(versions).decode(),
        }
        request.answer(ResponseCode.SUCCESS, ext=self._names | ext)

    def show(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_CLUSTER_ACL_CONFIG, without secret keys."""
        if self._keeper is None:
            request.answer(ResponseCode.SYSTEM_ERROR, _OFF)
            return
        accounts: dict[str, dict[str, Any]] = {}
        addresses: list[str] = []
        for file in self._keeper.files:
            addresses += file.tree.get(GLOBAL_ADDRESSES) or []
            for row in file.tree.get(ACCOUNTS) or []:
                is_admin = str(row.get("admin", "")).strip().lower() == "true"  # as it is read
                shown = row | {"secretKey": _HIDDEN, "admin": is_admin}
                accounts.setdefault(row["accessKey"], shown)
        body = {"globalWhiteAddrs": addresses, "plainAccessConfigs": list(accounts.values())}
        request.answer(ResponseCode.SUCCESS, body=write_json(body))


def _list(text: str | None) -> list[str] | None:
    """Return the items of a comma list; None where there is no list."""
    return None if text is None else [item.strip() for item in text.split(",") if item.strip()]
