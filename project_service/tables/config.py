"""The settings of one database's table API (``[stages.<stage>.databases.<name>]``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from project_service.settings.model import HOISTED
from project_service.tables.plan.options import PlanOptions

TxEnd = Literal["commit", "commit-allow-override", "rollback", "rollback-allow-override"]


@frozen
class TablesConfig:
    """The names are those of the configuration file. ``max_rows`` 0 means no limit.

    ``statement_timeout`` is the service's, written as PostgreSQL takes it ("0" for none).
    """

    schemas: tuple[str, ...] = ("public",)
    extra_search_path: tuple[str, ...] = ("public",)
    max_rows: int = 1000
    unfiltered_writes: Literal["refuse", "allow"] = "refuse"
    anon_role: str | None = "anon"
    authenticated_role: str = "authenticated"
    service_role: str = "service_role"
    jwt_secret: str | None = field(default=None, repr=False)
    jwt_secret_is_base64: bool = False
    jwks: str | None = field(default=None, repr=False)
    jwt_aud: str | None = None
    role_claim: str = ".role"
    pre_request: str | None = None
    aggregates: bool = True
    plan: bool = False
    tx_end: TxEnd = "commit"
    stream_threshold_bytes: int = 1024 * 1024
    stream_min_bytes_per_second: int = 16 * 1024
    app_settings: Mapping[str, str] = field(factory=dict, repr=False)
    server_timing: bool = False
    error_verbosity: Literal["verbose", "minimal"] = "verbose"
    openapi: Literal["follow-privileges", "ignore-privileges", "disabled"] = "follow-privileges"
    openapi_security_active: bool = False
    openapi_server_proxy_uri: str | None = None
    root_spec: str | None = None
    prepare: bool = True
    legacy_target_names: bool = True
    hoisted_tx_settings: tuple[str, ...] = HOISTED
    statement_timeout: str = "0"

    @property
    def plan_options(self) -> PlanOptions:
        allows = self.unfiltered_writes == "allow"
        return PlanOptions(self.max_rows, self.aggregates, self.legacy_target_names, allows)

    @property
    def tx_override(self) -> bool:
        """Whether a request may say how its transaction ends."""
        return self.tx_end.endswith("allow-override")
