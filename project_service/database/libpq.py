"""Functions of the libpq that psycopg2 has, with the types of their results and arguments.

Their names are those of PostgreSQL's manual ("libpq"). They take the pointer of a connection (``pgconn_ptr``) or of a
result. A wrong type here crashes the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from psycopg2 import _psycopg

_libpq = ctypes.PyDLL(_psycopg.__file__)
_P, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p

# What an array of texts is made of.
Text = ctypes.c_char_p
# A function that libpq calls for each notice of a connection.
NoticeReceiver = ctypes.CFUNCTYPE(None, _P, _P)


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(_libpq, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # ctypes makes it


pq_set_nonblocking = _function("PQsetnonblocking", _INT, _P, _INT)
pq_enter_pipeline_mode = _function("PQenterPipelineMode", _INT, _P)
pq_exit_pipeline_mode = _function("PQexitPipelineMode", _INT, _P)
pq_send_prepare = _function("PQsendPrepare", _INT, _P, _TEXT, _TEXT, _INT, _P)
pq_send_query_prepared = _function("PQsendQueryPrepared", _INT, _P, _TEXT, _INT, _P, _P, _P, _INT)
pq_send_query_params = _function("PQsendQueryParams", _INT, _P, _TEXT, _INT, _P, _P, _P, _P, _INT)
pq_pipeline_sync = _function("PQpipelineSync", _INT, _P)
pq_parameter_status = _function("PQparameterStatus", _TEXT, _P, _TEXT)
pq_set_error_verbosity = _function("PQsetErrorVerbosity", _INT, _P, _INT)
pq_flush = _function("PQflush", _INT, _P)
pq_consume_input = _function("PQconsumeInput", _INT, _P)
pq_is_busy = _function("PQisBusy", _INT, _P)
pq_get_result = _function("PQgetResult", _P, _P)
pq_result_status = _function("PQresultStatus", _INT, _P)
pq_command_status = _function("PQcmdStatus", _TEXT, _P)
pq_rows = _function("PQntuples", _INT, _P)
pq_fields = _function("PQnfields", _INT, _P)
pq_field_type = _function("PQftype", ctypes.c_uint, _P, _INT)
# Values are in text format, in which PostgreSQL has no NUL: what ends at the first one is the whole value.
pq_value = _function("PQgetvalue", _TEXT, _P, _INT, _INT)
pq_is_null = _function("PQgetisnull", _INT, _P, _INT, _INT)
pq_result_error_field = _function("PQresultErrorField", _TEXT, _P, _INT)
pq_clear = _function("PQclear", None, _P)
pq_set_notice_receiver = _function("PQsetNoticeReceiver", _P, _P, _P, _P)
pq_send_query = _function("PQsendQuery", _INT, _P, _TEXT)
pq_set_single_row_mode = _function("PQsetSingleRowMode", _INT, _P)
pq_field_name = _function("PQfname", _TEXT, _P, _INT)
pq_field_modifier = _function("PQfmod", _INT, _P, _INT)
