"""What users do with their accounts: sign up, log in, read, change or delete their own, and, by e-mail, set a new
password or confirm an address.

No GET uses up an e-mailed token, because mail programs and virus scanners follow links.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from project_service.audit import Event, Origin
from project_service.auth import errors, passwords
from project_service.auth.challenges import PLAIN, Asked, Challenges, digest_of
from project_service.auth.context import Context
from project_service.auth.factors import require_factor
from project_service.auth.limits import Throttle
from project_service.auth.passwords import Candidates, Hashes
from project_service.auth.tokens import signed_in_at
from project_service.auth.values import (
    FOR_PASSWORDS,
    Account,
    Email,
    IssuedSession,
    NewSession,
    Profile,
    Proof,
    Purpose,
    Reservation,
    User,
    check_metadata,
    email_of,
    folded,
    merged,
)
from project_service.errors import ApiError, session_revoked, validation_failed
from project_service.http.caller import Claims
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

# For how long after signing in a password may be replaced without the current one.
RECENT = timedelta(hours=24)


@frozen
class Accounts:
    repository: Repository
    throttle: Throttle
    hashes: Hashes
    challenges: Challenges
    context: Context

    # Shielded, so that an address that was taken counts even if the client hangs up.
    @shielded
    async def sign_up(
        self, email: str, password: str, metadata: Mapping[str, Any], origin: Origin
    ) -> IssuedSession | User:
        """Create a user. Returns the first session, or only the user if the address has to be confirmed first.

        Raises ``signup_disabled``, ``validation_failed``, ``weak_password``, ``email_taken``, ``rate_limited``,
        ``overloaded`` and, if addresses have to be confirmed but there is no mail server, ``email_not_configured``.
        """
        made = await self._sign_up(email, password, metadata, origin)
        if isinstance(made, _Taken):
            raise errors.email_taken()
        if isinstance(made, User):
            await self.challenges.mail(email_of(made), "confirmation", origin)
        return made

    @shielded
    async def sign_up_unseen(
        self, email: str, password: str, metadata: Mapping[str, Any], origin: Origin, asked: Asked
    ) -> IssuedSession | User | None:
        """As ``sign_up``, but if addresses have to be confirmed, and one is taken, it is None, after the same time.
        E-mails are limited as those of ``mail_code`` are."""
        if self.context.settings.confirm_email:
            await self.throttle.count_mail(Email.parse_new(email), origin)
        made = await self._sign_up(email, password, metadata, origin)
        if isinstance(made, IssuedSession):
            return made
        if isinstance(made, _Taken):
            if not self.context.settings.confirm_email:
                raise errors.email_taken()
            if not made.same_password:
                # One of the two who have signed up is not whose address it is. Who confirms it has neither password,
                # rather than that of somebody else.
                asked = asked.taking_over()
        # For a taken address too: whoever has yet to confirm it gets another e-mail, and whoever has confirmed it is
        # told that somebody tried.
        address = Email.parse_new(email)
        await self.challenges.mail(address, "confirmation", origin, asked, if_confirmed="already_registered")
        return None if isinstance(made, _Taken) else made

    async def _sign_up(
        self, email: str, password: str, metadata: Mapping[str, Any], origin: Origin
    ) -> IssuedSession | User | _Taken:
        """As ``sign_up``, but without the e-mail, and without an error if the address is taken."""
        settings = self.context.settings
        if not settings.allow_signup:
            raise errors.signup_disabled()
        address = Email.parse_new(email)
        raw = self._check_new_password(password, address)
        if settings.confirm_email:
            self.challenges.require_mailer()
        reservation = await self.throttle.reserve_signup(origin)
        try:
            # Asked about a taken address too, so that a refusal does not say whether one is.
            user_id = await self.context.new_user(address, metadata, origin)
        except ApiError:
            await self.throttle.finish(reservation, "failed")
            raise
        confirm = self.context.settings.confirm_email
        known = await self.throttle.during(reservation, self.repository.find_user_by_email(address))
        if known is None:
            hashed = await self.throttle.during(reservation, self.hashes.hash(raw))
            session, refresh = self.context.new_session(origin)
            account = await self.repository.create_user(
                email=address,
                password_hash=hashed,
                metadata=metadata,
                confirmed=False,
                session=None if confirm else session,
                user_id=user_id,
                event=Event(session.created_at, "signup", email=address.address, origin=origin),
            )
            if account is not None:
                await self.throttle.finish(reservation, "failed")
                if confirm:
                    return account.user
                return await self.context.issued_to(account.user, session, refresh)
            known = await self.repository.find_user_by_email(address)
        # This takes the time of one hash too.
        stored = None if known is None else known.password_hash
        same = await self.throttle.during(reservation, self.hashes.matches((raw,), stored))
        # An attempt with a taken address counts too, because it tells who has an account. It is recorded by itself,
        # so that there are as many commits as for a new user.
        event = Event(self.context.now(), "signup", "email_taken", email=address.address, origin=origin)
        await self.throttle.finish(evolve(reservation, mark=None), "released", event)
        await self.throttle.finish(reservation, "failed")
        return _Taken(same)

    @shielded
    async def sign_up_anonymously(self, metadata: Mapping[str, Any], origin: Origin) -> IssuedSession:
        """Create a user who has no way in but the session that begins. Raises ``anonymous_users_disabled`` and
        ``rate_limited`` (by client address)."""
        if not self.context.settings.anonymous_users or not self.context.settings.allow_signup:
            raise errors.anonymous_users_disabled()
        await self.throttle.count_anonymous(origin)
        user_id = await self.context.new_user(None, metadata, origin, app_metadata={}, is_anonymous=True)
        session, refresh = self.context.new_session(origin, "anonymous")
        account = await self.repository.create_user(
            email=None,
            password_hash=None,
            metadata=metadata,
            app_metadata={},
            confirmed=False,
            is_anonymous=True,
            user_id=user_id,
            session=session,
            event=Event(session.created_at, "signup_anonymous", origin=origin),
        )
        assert account is not None  # there is no address that could be taken
        return await self.context.issued_to(account.user, session, refresh)

    @shielded
    async def mail_code(
        self, email: str, origin: Origin, asked: Asked, *, create_user: bool, metadata: Mapping[str, Any]
    ) -> None:
        """E-mail a code and a link that sign in to ``email``, for which a user is made if there is none and
        ``create_user`` says so. The caller cannot tell whether there was one, nor whether signing up is allowed.

        Raises ``email_not_configured``, ``rate_limited`` and ``validation_failed``; and what a hook refuses, which
        only new users are.
        """
        self.challenges.require_mailer()
        address = Email.parse(email)
        await self.throttle.count_mail(address, origin)
        if create_user and self.context.settings.allow_signup:
            address = Email.parse_new(email)
            await self.throttle.count_signup(origin)
            await self._create_without_password(address, metadata, origin)
        purpose: Purpose = "confirmation" if self.context.settings.confirm_email else "magic_link"
        # Somebody else may have signed up with the address and a password.
        asked = asked.taking_over()
        await self.challenges.mail(address, purpose, origin, asked, if_confirmed="magic_link")

    async def _create_without_password(
        self, address: Email, metadata: Mapping[str, Any], origin: Origin
    ) -> None:
        """Make a user of this address if there is none."""
        user_id = None
        if self.context.hooks.has("before_user_created"):
            if await self.repository.find_user_by_email(address) is not None:
                return
            user_id = await self.context.new_user(address, metadata, origin)
        await self.repository.create_user(
            email=address,
            password_hash=None,
            metadata=metadata,
            confirmed=False,
            session=None,
            user_id=user_id,
            event=Event(self.context.now(), "signup", email=address.address, origin=origin),
        )

    # Shielded, so that an attempt is counted even if the client hangs up.
    @shielded
    async def log_in(self, email: str, password: str, origin: Origin) -> IssuedSession:
        """Start a new session of an existing user.

        Raises ``invalid_credentials`` for an unknown address as for a wrong password, after the same time;
        ``user_disabled`` and ``email_not_confirmed``, but only to those who know the password; ``rate_limited``,
        ``overloaded`` and ``validation_failed``.
        """
        address = Email.parse(email)
        candidates = passwords.candidates(password)
        reservation = await self.throttle.reserve_login(address, origin)
        event = Event(self.context.now(), "login", email=address.address, origin=origin)
        if reservation.account is not None:
            event = evolve(event, user_id=reservation.account.user.id)
        account = await self._check_password(candidates, reservation.account, reservation, event)
        refusal = self._login_refusal(account)
        if refusal is not None:
            event = evolve(event, at=self.context.now(), result=refusal.code)
            await self.throttle.finish(reservation, "released", event)
            raise refusal
        session, refresh = self.context.new_session(origin)
        event = evolve(event, at=session.created_at)
        user = await self.throttle.during(
            reservation, self._start_session(account, candidates, session, event)
        )
        await self.throttle.finish(reservation, "cleared" if user is not None else "released")
        if user is None:
            raise errors.invalid_credentials()
        return await self.context.issued_to(user, session, refresh)

    def _login_refusal(self, account: Account) -> ApiError | None:
        if account.disabled_at is not None:
            return errors.user_disabled()
        if self.context.settings.confirm_email and account.user.awaits_confirmation:
            return errors.email_not_confirmed()
        return None

    async def _start_session(
        self, account: Account, password: Candidates, session: NewSession, event: Event
    ) -> User | None:
        """Store the session, and a new hash of the password if its hash is outdated. None if the password was
        changed since it was checked, or the user disabled or deleted."""
        async for known in self._states(account, password):
            new_hash = None
            if self.hashes.outdated(known.password_hash):
                new_hash = await self.hashes.hash(password[0])
            user = await self.repository.start_session(known, new_hash, session, event)
            if user is not None:
                return user
        return None

    async def read(self, caller: Claims) -> User:
        """The signed-in user. Raises ``session_revoked`` if the user has been deleted or disabled, of which this
        worker may not have been notified yet."""
        return (await self._account_of(caller)).user

    async def profile(self, user_id: str) -> Profile:
        """A user who is signed in, with the ways in. Raises ``session_revoked`` as ``read`` does."""
        profile = await self.repository.profile(user_id)
        if profile is None or profile.account.disabled_at is not None:
            raise session_revoked()
        return profile

    # Shielded, so that of two changes not only one is made if the client hangs up.
    @shielded
    async def change(
        self,
        caller: Claims,
        password: str | None,
        current_password: str | None,
        metadata: Mapping[str, Any] | None,
        origin: Origin,
    ) -> User:
        """Set ``metadata``, or ``password``, or both. A password needs ``current_password``, and ends the other
        sessions. Returns the user as it is then.

        Raises ``validation_failed``, ``weak_password``, ``invalid_credentials``, ``rate_limited`` and, for a
        password, ``insufficient_aal``.
        """
        account = await self._account_of(caller)
        if password is not None:
            await require_factor(self.repository, caller)
            raw = self._check_new_password(password, email_of(account.user))
            account = await self._set_password(caller, account, current_password, raw, origin)
        elif current_password is not None:
            raise validation_failed({"current_password": "goes with a new password"})
        if metadata is not None:
            event = self.context.user_event("set_metadata", caller, origin)
            account = _active(await self.repository.set_metadata(caller.sub, metadata, event))
        return account.user

    @shielded
    async def revise(
        self,
        caller: Claims,
        origin: Origin,
        *,
        metadata: Mapping[str, Any],
        password: str | None,
        current_password: str | None,
        nonce: str = "",
        email: str = "",
        asked: Asked = PLAIN,
    ) -> User:
        """Merge ``metadata`` into the user's (``values.merged``), set ``password``, and begin to change the address
        to ``email``. Returns the user as it is then.

        A password has to differ from the one before, and ends the other sessions. Unless
        ``auth.secure_password_change`` is off it needs a session that began within ``RECENT``, or
        ``current_password``, or the ``nonce`` that ``reauthenticate`` has mailed. The address changes when it is
        confirmed (``_begin_to_change_email``). Raises ``validation_failed``, ``weak_password``, ``same_password``,
        ``reauthentication_needed``, ``reauthentication_not_valid``, ``invalid_credentials``, ``insufficient_aal``,
        ``email_taken``, ``email_not_configured`` and ``rate_limited``.
        """
        account = await self._account_of(caller)
        _merge(metadata, account.user)  # refused before anything is changed
        moves = email != "" and folded(email.strip()) != folded(account.user.email)
        if moves or password is not None:
            await require_factor(self.repository, caller)
        new = await self._new_address(account.user, email, origin) if moves else None
        if password is not None:
            raw = self._check_new_password(password, new or email_of(account.user))
            if current_password is not None:
                if raw in passwords.candidates(current_password):
                    raise errors.same_password()
                account = await self._set_password(caller, account, current_password, raw, origin)
            elif nonce or account.user.is_anonymous or self._signed_in_recently(caller):
                if nonce:
                    await self._redeem_nonce(account.user, nonce, origin)
                account = await self._replace_password(caller, account, raw, origin)
            else:
                raise errors.reauthentication_needed()
        # After the password, by which a change of address that somebody else may have begun ends.
        if new is not None:
            account = await self._begin_to_change_email(account, new, caller, origin, asked)
        if metadata:
            event = self.context.user_event("set_metadata", caller, origin)
            account = _active(await self.repository.revise(caller.sub, partial(_merge, metadata), event))
        return account.user

    async def reauthenticate(self, caller: Claims, origin: Origin, asked: Asked) -> None:
        """Mail the signed-in user a code that lets ``revise`` set a password. Raises ``email_not_configured`` and
        ``rate_limited``; ``validation_failed`` if the user has no address."""
        address = email_of((await self._account_of(caller)).user)
        if not address.address:
            raise validation_failed(
                {"email": "is missing: the user has no address to which a code could be sent"}
            )
        self.challenges.require_mailer()
        await self.throttle.count_mail(address, origin)
        await self.challenges.mail(address, "reauthentication", origin, asked, user_id=caller.sub)

    async def _redeem_nonce(self, user: User, nonce: str, origin: Origin) -> None:
        try:
            answer = self.challenges.by_code(email_of(user), nonce, "reauthentication", user_id=user.id)
            await self.challenges.confirm(answer, origin)
        except ApiError as refusal:
            if refusal.code != "invalid_one_time_token":
                raise
            raise errors.reauthentication_not_valid() from None

    async def _new_address(self, user: User, email: str, origin: Origin) -> Email:
        """The address to which ``user`` wants to change. That it is taken is told, so how often is limited."""
        new = Email.parse_new(email)
        if not self._changes_at_once(user):
            self.challenges.require_mailer()
        await self.throttle.count_mail(new, origin)
        if await self.repository.find_user_by_email(new) is not None:
            raise errors.email_taken()
        return new

    def _changes_at_once(self, user: User) -> bool:
        """Somebody anonymous gets an address at once where nobody confirms addresses."""
        return user.is_anonymous and not self.context.settings.confirm_email

    async def _begin_to_change_email(
        self, account: Account, new: Email, caller: Claims, origin: Origin, asked: Asked
    ) -> Account:
        """Mail a challenge to the new address; and, with ``auth.double_confirm_changes``, to the current one, if
        there is one."""
        user = account.user
        if self._changes_at_once(user):
            event = self.context.user_event("change_email", caller, origin)
            return _active(await self.repository.change_email(user.id, new, event))
        both = self.context.settings.double_confirm_changes and user.email != ""
        data = {**asked.data, "email": new.address, "email_key": new.key, "both": both}
        asked = evolve(asked, data=data)
        if both:
            await self.challenges.mail(email_of(user), "email_change_current", origin, asked, user_id=user.id)
        await self.challenges.mail(new, "email_change", origin, asked, user_id=user.id)
        return account

    def _signed_in_recently(self, caller: Claims) -> bool:
        secure = self.context.settings.secure_password_change
        return not secure or self.context.clock() - signed_in_at(caller) <= RECENT.total_seconds()

    async def _replace_password(
        self, caller: Claims, account: Account, new: bytes, origin: Origin
    ) -> Account:
        # Whoever tries out passwords in this way changes it at the first one that is wrong.
        if account.password_hash and await self.hashes.matches((new,), account.password_hash):
            raise errors.same_password()
        hashed = await self.hashes.hash(new)
        event = self.context.user_event("set_password", caller, origin)
        proof = Proof(account.password_hash, caller.sid)
        changed = await self.repository.set_password(caller.sub, hashed, proof, event)
        if changed is None:
            # It was changed at the same moment, or the session has ended.
            raise session_revoked()
        return changed

    async def _set_password(
        self, caller: Claims, account: Account, current: str | None, new: bytes, origin: Origin
    ) -> Account:
        if current is None:
            raise validation_failed({"current_password": "is required"})
        candidates = passwords.candidates(current)
        await self._prove(caller, account, candidates, "set_password", origin)
        async for known in self._states(account, candidates):
            hashed = await self.hashes.hash(new)
            event = self.context.user_event("set_password", caller, origin)
            proof = Proof(known.password_hash, caller.sid)
            changed = await self.repository.set_password(caller.sub, hashed, proof, event)
            if changed is not None:
                return _active(changed)
        raise await self._proof_failure(caller)

    @shielded
    async def delete(self, caller: Claims, current_password: str, origin: Origin) -> None:
        """Delete the account and all its sessions.

        Raises ``insufficient_aal``, ``invalid_credentials``, ``rate_limited`` and ``user_in_use``.
        """
        account = await self._account_of(caller)
        await require_factor(self.repository, caller)
        password = passwords.candidates(current_password)
        await self._prove(caller, account, password, "delete_user", origin)
        async for known in self._states(account, password):
            event = self.context.user_event("delete_user", caller, origin)
            proof = Proof(known.password_hash, caller.sid)
            if await self.repository.delete_user(caller.sub, event, proof):
                return
        raise await self._proof_failure(caller)

    async def _prove(
        self, caller: Claims, account: Account, password: Candidates, action: str, origin: Origin
    ) -> None:
        """Returns if the caller knows the password. Failures are limited as those of a login are, because a stolen
        access token must not be enough.

        The change itself has to be made on condition of a ``Proof``, because the password may be changed while it is
        being checked, and then the old one must not be enough either.
        """
        reservation = await self.throttle.reserve_password_check(caller.sid)
        event = self.context.user_event(action, caller, origin)
        await self._check_password(password, account, reservation, event)
        await self.throttle.finish(reservation, "cleared")

    async def _proof_failure(self, caller: Claims) -> ApiError:
        """Why a proof did not hold: ``invalid_credentials``. Raises ``session_revoked`` if it is because the user is
        deleted or disabled."""
        await self._account_of(caller)
        return errors.invalid_credentials()

    async def _check_password(
        self, password: Candidates, account: Account | None, reservation: Reservation, event: Event
    ) -> Account:
        """The account, if the password is right; then the reservation remains to be finished. Otherwise it is
        finished as failed, with ``event``, and ``invalid_credentials`` is raised. Raises ``overloaded`` too."""
        stored = account.password_hash if account else None
        right = await self.throttle.during(reservation, self.hashes.matches(password, stored))
        if account is None or not right:
            await self.throttle.finish(reservation, "failed", evolve(event, result="invalid_credentials"))
            raise errors.invalid_credentials()
        return account

    async def _states(self, account: Account, password: Candidates) -> AsyncIterator[Account]:
        """``account``, whose password was checked, and then, if the password is still right, the account as it is by
        then: another login may have replaced an outdated hash since.

        A change on condition of the hash is made with the first; only if that fails, the second is asked for.
        """
        yield account
        current = await self.repository.find_user(account.user.id)
        if current is not None and await self.hashes.matches(password, current.password_hash):
            yield current

    def _check_new_password(self, password: str, email: Email) -> bytes:
        return passwords.check_new(password, email, passwords.Rules.of(self.context.settings))

    async def _account_of(self, caller: Claims) -> Account:
        return _active(await self.repository.find_user(caller.sub))

    # By e-mail, from ``/auth``: the tokens are posted by pages of the project's own.

    async def request_mail(self, email: str, purpose: Purpose, origin: Origin) -> None:
        """E-mail a token for a new password, or for the confirmation of the address, to ``email`` if there is a user
        of that address who may have one. The caller cannot tell: it is sent after the response.

        Raises ``email_not_configured``, ``rate_limited`` (by client address) and ``validation_failed``.
        """
        self.challenges.require_mailer()
        address = Email.parse(email)
        reservation = await self.throttle.reserve_mail(origin)
        await self.throttle.finish(reservation, "failed")
        await self.challenges.mail(address, purpose, origin)

    async def reset_password(self, token: str, password: str, origin: Origin) -> None:
        """Set a new password, or the first one after an invitation, and end all sessions.

        Raises ``invalid_one_time_token``, and ``weak_password``, after which the token can still be used.
        """
        digest = digest_of(token)
        owner = await self.repository.owner_of_token(digest, FOR_PASSWORDS, self.context.now())
        if owner is None:
            raise errors.invalid_one_time_token()
        hashed = await self.hashes.hash(self._check_new_password(password, email_of(owner)))
        event = Event(self.context.now(), "reset_password", origin=origin)
        if await self.repository.reset_password(digest, hashed, event) is None:
            raise errors.invalid_one_time_token()

    async def confirm_email(self, token: str, origin: Origin) -> IssuedSession:
        """Confirm an address and log its owner in. Raises ``invalid_one_time_token``."""
        session = await self.challenges.redeem(self.challenges.by_token(token, "confirmation"), origin)
        assert isinstance(session, IssuedSession)
        return session


@frozen
class _Taken:
    """The address of a sign-up is taken. ``same_password`` says whether by whoever has signed up with the password
    too, who did so twice."""

    same_password: bool


def _merge(metadata: Mapping[str, Any], user: User) -> User:
    """Metadata that SQL made larger than allowed may stay as it is."""
    return (
        evolve(user, metadata=check_metadata("data", merged(user.metadata, metadata))) if metadata else user
    )


def _active(account: Account | None) -> Account:
    if account is None or account.disabled_at is not None:
        raise session_revoked()
    return account
