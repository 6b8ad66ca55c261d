"""Links that operators have made: an invitation that is mailed, or a link of any kind, to be sent some other way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from project_service.audit import Origin
from project_service.auth import errors
from project_service.auth.admin import Administration
from project_service.auth.challenges import Asked, Challenges, Sent
from project_service.auth.values import Account, Email, Profile, Purpose, email_of
from project_service.errors import validation_failed
from project_service.lifecycle import shielded


@frozen
class Invitations:
    administration: Administration
    challenges: Challenges

    @shielded
    async def invite(self, email: str, metadata: Mapping[str, Any], origin: Origin, asked: Asked) -> Profile:
        """Make a user without a password, and mail an invitation; the same user gets another one until the address is
        confirmed. Raises ``email_taken`` after that, ``email_not_configured`` and ``validation_failed``."""
        self.challenges.require_mailer()
        account = await self._invited(email, metadata, origin)
        address = email_of(account.user)
        await self.challenges.mail(address, "invitation", origin, asked, user_id=account.user.id)
        return await self.administration.profile(account.user.id)

    @shielded
    async def link(
        self,
        kind: str,
        email: str,
        origin: Origin,
        asked: Asked,
        *,
        password: str,
        metadata: Mapping[str, Any],
        new_email: str,
    ) -> tuple[Profile, Sent]:
        """A challenge for the user of ``email``, which nobody is mailed. ``kind`` is signup (with ``password``),
        invite or magiclink, which make the user if there is none, recovery, email_change_current or email_change_new
        (with ``new_email``).

        Raises ``user_not_found``, ``email_taken``, ``weak_password`` and ``validation_failed``.
        """
        if kind == "signup":
            if not password:
                raise validation_failed({"password": "is required"})
            account = await self._created(email, metadata, origin, password=password)
            return await self._issued(account, "confirmation", email_of(account.user), origin, asked)
        if kind == "invite":
            account = await self._invited(email, metadata, origin)
            return await self._issued(account, "invitation", email_of(account.user), origin, asked)
        if kind == "magiclink":
            known = await self._known(email)
            account = known or await self._created(email, metadata, origin)
            return await self._issued(account, "magic_link", email_of(account.user), origin, asked)
        account = await self.administration.find(email)
        if kind == "recovery":
            return await self._issued(account, "recovery", email_of(account.user), origin, asked)
        purposes: dict[str, Purpose] = {
            "email_change_current": "email_change_current",
            "email_change_new": "email_change",
        }
        if kind not in purposes:
            raise validation_failed({"type": "is not one of those that links are made for"})
        new = Email.parse_new(new_email)
        if await self._known(new_email) is not None:
            raise errors.email_taken()
        both = self.challenges.context.settings.double_confirm_changes and account.user.email != ""
        data = {**asked.data, "email": new.address, "email_key": new.key, "both": both}
        address = new if kind == "email_change_new" else email_of(account.user)
        return await self._issued(account, purposes[kind], address, origin, evolve(asked, data=data))

    async def _known(self, email: str) -> Account | None:
        return await self.administration.repository.find_user_by_email(Email.parse(email))

    async def _invited(self, email: str, metadata: Mapping[str, Any], origin: Origin) -> Account:
        known = await self._known(email)
        if known is not None and known.confirmed_at is not None:
            raise errors.email_taken()
        return known or await self._created(email, metadata, origin, invited=True)

    async def _created(self, email: str, metadata: Mapping[str, Any], origin: Origin, **more: Any) -> Account:
        user_id = await self.challenges.context.new_user(Email.parse_new(email), metadata, origin)
        return await self.administration.create(
            email, origin, user_id=user_id, metadata=metadata, confirmed=False, **more
        )

    async def _issued(
        self, account: Account, purpose: Purpose, address: Email, origin: Origin, asked: Asked
    ) -> tuple[Profile, Sent]:
        sent = await self.challenges.issue(address, purpose, origin, asked, user_id=account.user.id)
        if sent is None:
            raise errors.user_disabled()
        return await self.administration.profile(account.user.id), sent
