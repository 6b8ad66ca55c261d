"""The errors of endpoints of operators."""

from __future__ import annotations

from project_service.errors import ApiError


def database_not_found() -> ApiError:
    return ApiError(404, "database_not_found", "There is no such database; GET /admin/databases lists them.")


def log_not_shown() -> ApiError:
    return ApiError(
        403, "log_not_shown", "The log is shown only where the setting server.console_log is true."
    )


def log_unavailable() -> ApiError:
    message = "The process that keeps the log has not answered."
    return ApiError(503, "log_unavailable", message, counted=True)


def mails_not_kept() -> ApiError:
    message = "No e-mails are kept here: they are only where smtp.mail_dir is set and smtp.host is not."
    return ApiError(409, "mails_not_kept", message)


def mail_not_found() -> ApiError:
    return ApiError(404, "mail_not_found", "There is no such e-mail; only the last 1,000 are kept.")


def relation_not_found() -> ApiError:
    message = "The database has no such table or view in its exposed schemas."
    return ApiError(404, "relation_not_found", message)


def console_sql_off() -> ApiError:
    message = "The setting server.console_sql does not allow SQL; the service runs it where that is true."
    return ApiError(403, "console_sql_off", message)


def migrations_dir_not_set() -> ApiError:
    message = "No folder for migrations is named; the setting server.migrations_dir names it."
    return ApiError(403, "migrations_dir_not_set", message)


def migration_not_saved(why: str = "The folder cannot be written to.") -> ApiError:
    return ApiError(409, "migration_not_saved", f"Migrations cannot be saved: {why}")


def key_not_found() -> ApiError:
    return ApiError(404, "key_not_found", "There is no active project key with this id.")


def key_in_use() -> ApiError:
    message = "The request itself came with this key; with force=true it is revoked all the same."
    return ApiError(409, "key_in_use", message)


def signing_keys_not_writable(why: str = "…") -> ApiError:
    message = (
        f"The file of the signing keys was not changed: {why}. Whoever may change it runs "
        "`project-service jwt-keys rotate`, and then reloads the service."
    )
    return ApiError(409, "signing_keys_not_writable", message)
