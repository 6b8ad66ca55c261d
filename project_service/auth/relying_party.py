"""Web Authentication (W3C, Level 3) without I/O: what pages are given for ``navigator.credentials``, and what comes
back from there. A key is bound to the relying party's host, and what it signs to the page's origin and a challenge.

The library is imported where it is used: it takes 4 MiB, which only those need who have passkeys.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import evolve, frozen

from project_service.auth import errors
from project_service.auth.values import Credential
from project_service.settings.model import Auth as AuthSettings

if TYPE_CHECKING:
    from webauthn.helpers.structs import (
        AuthenticationCredential,
        PublicKeyCredentialDescriptor,
        UserVerificationRequirement,
    )

CHALLENGE_BYTES = 32
CHALLENGE_LIFETIME = timedelta(minutes=5)
_MILLISECONDS = int(CHALLENGE_LIFETIME.total_seconds() * 1000)
# As the standard recommends to limit them (section 4, "Credential ID").
_MAX_ID_BYTES = 1023
_UUID_BYTES = 16
_TRANSPORTS = frozenset({"ble", "hybrid", "internal", "nfc", "smart-card", "usb"})


@frozen
class RelyingParty:
    """``id`` is a host, ``origins`` those of the pages."""

    id: str
    origins: tuple[str, ...]

    @classmethod
    def of(cls, settings: AuthSettings) -> RelyingParty:
        """Raises ``passkey_disabled``."""
        site = urlsplit(settings.site_url or "")
        host = settings.passkey_rp_id or site.hostname
        origins = settings.passkey_origins or (f"{site.scheme}://{site.netloc}",)
        if not settings.passkeys or host is None:
            raise errors.passkey_disabled()
        return cls(host, origins)

    def creation_options(
        self, challenge: bytes, user_id: str, name: str, known: Sequence[Credential], *, signs_in: bool
    ) -> Mapping[str, Any]:
        """For a new key, on a device that has none of the ``known``. One that ``signs_in`` says whose it is, and has
        its user prove to the device who they are."""
        import webauthn
        from webauthn.helpers import options_to_json_dict
        from webauthn.helpers.structs import AuthenticatorSelectionCriteria, ResidentKeyRequirement

        resident = ResidentKeyRequirement.REQUIRED if signs_in else ResidentKeyRequirement.DISCOURAGED
        made = webauthn.generate_registration_options(
            rp_id=self.id,
            rp_name=self.id,
            user_id=uuid.UUID(user_id).bytes,
            user_name=name,
            challenge=challenge,
            timeout=_MILLISECONDS,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=resident, user_verification=_verification(signs_in)
            ),
            exclude_credentials=_descriptors(known),
        )
        return options_to_json_dict(made)

    def request_options(
        self, challenge: bytes, known: Sequence[Credential], *, signs_in: bool = False
    ) -> Mapping[str, Any]:
        """For a signature by one of the ``known``, or by any that says whose it is."""
        import webauthn
        from webauthn.helpers import options_to_json_dict

        made = webauthn.generate_authentication_options(
            rp_id=self.id,
            challenge=challenge,
            timeout=_MILLISECONDS,
            allow_credentials=_descriptors(known),
            user_verification=_verification(signs_in),
        )
        return options_to_json_dict(made)

    def created(self, given: Mapping[str, Any], challenge: bytes, *, signs_in: bool) -> Credential:
        """The key that a page says was made. Raises ``passkey_verification_failed``."""
        import webauthn
        from webauthn.helpers import parse_registration_credential_json

        try:
            parsed = parse_registration_credential_json(dict(given))
            made = webauthn.verify_registration_response(
                credential=parsed,
                expected_challenge=challenge,
                expected_rp_id=self.id,
                expected_origin=list(self.origins),
                require_user_verification=signs_in,
            )
            if len(made.credential_id) > _MAX_ID_BYTES:
                raise ValueError
            transports = {one.value for one in parsed.response.transports or ()}
            return Credential(
                made.credential_id,
                made.credential_public_key,
                made.sign_count,
                str(uuid.UUID(made.aaguid)),
                tuple(sorted(transports & _TRANSPORTS)),
                made.credential_backed_up,
            )
        # The parsers raise errors of many kinds, of input that anybody can write.
        except Exception:
            raise errors.passkey_verification_failed() from None

    def signed(
        self, given: Mapping[str, Any], challenge: bytes, known: Credential, *, signs_in: bool
    ) -> Credential:
        """``known`` as it is after a signature. Raises ``passkey_verification_failed``, also if its counter has not
        gone up."""
        import webauthn

        try:
            checked = webauthn.verify_authentication_response(
                credential=dict(given),
                expected_challenge=challenge,
                expected_rp_id=self.id,
                expected_origin=list(self.origins),
                credential_public_key=known.public_key,
                credential_current_sign_count=known.sign_count,
                require_user_verification=signs_in,
            )
        except Exception:
            raise errors.passkey_verification_failed() from None
        if checked.credential_id != known.id:
            raise errors.passkey_verification_failed()
        return evolve(known, sign_count=checked.new_sign_count, is_backed_up=checked.credential_backed_up)


def credential_id_of(given: Mapping[str, Any]) -> bytes:
    """Which key has signed, as the page says. Raises ``passkey_verification_failed``."""
    return _parsed(given).raw_id


def user_of(given: Mapping[str, Any]) -> str:
    """Whose the key is that has signed, as the device says. Raises ``passkey_verification_failed``."""
    handle = _parsed(given).response.user_handle
    if handle is None or len(handle) != _UUID_BYTES:
        raise errors.passkey_verification_failed()
    return str(uuid.UUID(bytes=handle))


def _parsed(given: Mapping[str, Any]) -> AuthenticationCredential:
    from webauthn.helpers import parse_authentication_credential_json

    try:
        return parse_authentication_credential_json(dict(given))
    except Exception:
        raise errors.passkey_verification_failed() from None


def _descriptors(known: Sequence[Credential]) -> list[PublicKeyCredentialDescriptor]:
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

    return [PublicKeyCredentialDescriptor(id=one.id) for one in known]


def _verification(signs_in: bool) -> UserVerificationRequirement:
    from webauthn.helpers.structs import UserVerificationRequirement

    return UserVerificationRequirement.REQUIRED if signs_in else UserVerificationRequirement.PREFERRED
