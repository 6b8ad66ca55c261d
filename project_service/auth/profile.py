"""What a signed-in user may do with his own account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from attrs import evolve, frozen

from project_service.auth import errors, passwords
from project_service.auth.accounts import Accounts
from project_service.auth.context import Context
from project_service.auth.hashing import Hashes
from project_service.auth.metadata import checked
from project_service.auth.model import Account, Origin, User, email_of
from project_service.auth.ports import Proof, Users
from project_service.deferreds import shield
from project_service.errors import refuse_unknown, session_revoked, validation_failed
from project_service.http.caller import Claims

T = TypeVar("T")

CHANGEABLE = ("password", "current_password", "metadata")


@frozen
class Profile:
    users: Users
    accounts: Accounts
    hashes: Hashes
    context: Context

    async def read(self, caller: Claims) -> User:
        """Raises ``session_revoked`` if the user has been deleted or disabled, of which this worker may not have
        heard yet."""
        return (await self._account(caller)).user

    async def change(self, caller: Claims, wanted: Mapping[str, Any], origin: Origin) -> User:
        """Set ``metadata``, or ``password``, or both. A password needs ``current_password``, and ends the other
        sessions.

        Raises ``validation_failed``, ``weak_password``, ``invalid_credentials`` and ``rate_limited``.
        """
        refuse_unknown(wanted, CHANGEABLE, "cannot be changed here")
        # Shielded, so that of two changes not only one is made if the client hangs up.
        return (await shield(self._change(caller, wanted, origin))).user

    async def _change(self, caller: Claims, wanted: Mapping[str, Any], origin: Origin) -> Account:
        account = await self._account(caller)
        metadata = checked(wanted["metadata"]) if "metadata" in wanted else None
        if "password" in wanted:
            email = email_of(account.user)
            raw = passwords.acceptable(wanted["password"], email, self.context.settings.password_min_bytes)
            account = await self._set_password(caller, account, wanted.get("current_password"), raw, origin)
        elif "current_password" in wanted:
            raise validation_failed({"current_password": "goes with a new password"})
        if metadata is not None:
            account = self._there(
                await self.users.set_metadata(
                    caller.sub, metadata, self.context.done_by("set_metadata", caller, origin)
                )
            )
        return account

    async def _set_password(
        self, caller: Claims, account: Account, current: object, new: bytes, origin: Origin
    ) -> Account:
        async def change(proof: Proof) -> Account | None:
            hashed = await self.hashes.hash(new)
            event = self.context.done_by("set_password", caller, origin)
            return await self.users.set_password(caller.sub, hashed, proof, event)

        return self._there(await self._proven(caller, account, current, "set_password", origin, change))

    async def delete(self, caller: Claims, current: object, origin: Origin) -> None:
        """Delete the account and all its sessions.

        Raises ``invalid_credentials``, ``rate_limited`` and ``user_in_use``.
        """
        account = await self._account(caller)

        async def change(proof: Proof) -> bool:
            event = self.context.done_by("delete_user", caller, origin)
            return await self.users.delete(caller.sub, event, proof)

        await shield(self._proven(caller, account, current, "delete_user", origin, change))

    async def _proven(
        self,
        caller: Claims,
        account: Account,
        current: object,
        action: str,
        origin: Origin,
        change: Callable[[Proof], Awaitable[T]],
    ) -> T:
        """What ``change`` returns, once the caller has proven that he knows his password ``current``. Failures are
        limited as those of a login are, because a stolen access token must not be enough.

        ``change`` is made on condition of a proof, because the password may be changed while it is being checked, and
        then the old one must not be enough either. If ``change`` returns nothing, this raises ``session_revoked`` if
        the user is deleted or disabled, otherwise ``invalid_credentials``.
        """
        candidates = passwords.candidates(current, "current_password")
        attempt = await self.accounts.throttle.reserve_by_session(caller.sid)
        failure = evolve(self.context.done_by(action, caller, origin), result="invalid_credentials")
        await self.accounts.check_password(candidates, account, attempt, failure)
        await attempt.settle("cleared")
        made = await self.accounts.with_password(
            candidates, account, lambda known: change(Proof(known.password_hash, caller.sid))
        )
        if not made:
            await self._account(caller)
            raise errors.invalid_credentials()
        return made

    async def _account(self, caller: Claims) -> Account:
        return self._there(await self.users.find(caller.sub))

    @staticmethod
    def _there(account: Account | None) -> Account:
        if account is None or account.disabled_at is not None:
            raise session_revoked()
        return account
