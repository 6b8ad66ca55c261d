"""How long things last in storage, where one duration depends on another. Tests check the inequalities."""

from __future__ import annotations

from datetime import timedelta

# How often an upload renews its reservation.
RENEWAL_SECONDS = 60.0
# The sweeper gives up uploads whose reservation was not renewed for this long.
STALE_AFTER = timedelta(minutes=15)
# How long a response of the store that is read whole may take to arrive. Completing an upload may take long, during
# which its reservation is not renewed.
MAX_RESPONSE_SECONDS = 15 * 60.0

# A version that was reserved in advance is released when nobody has taken it for this long.
UNUSED_SECONDS = 2.0
# One older than this must not be taken, because the sweeper may have given it up: a process that was stopped, or that
# waited for a slow database, has such.
USABLE_SECONDS = 60.0
# How long releasing may take: the end of a process waits for it.
RELEASE_TIMEOUT_SECONDS = 1.0

# How long a request waits for the deletion of an object's old bytes. What it asked for is done already.
REMOVAL_TIMEOUT_SECONDS = 5.0
# How long the start of the service waits for the store; ``/ready`` waits as long.
START_TIMEOUT_SECONDS = 5.0

# How long the rules of a bucket are cached, and how long while one request reads them again, so that others need not.
# A change has to hold on every worker and host within a second.
BUCKET_FRESH_SECONDS = 0.5
BUCKET_REREAD_SECONDS = 0.9

# For how long after its last use the download of a link may be continued.
CONTINUE_WITHIN = timedelta(minutes=10)
# For so long an expired link is answered with 410 ``token_expired``; after that it is unknown.
KEEP_EXPIRED_LINKS = timedelta(days=1)

# For how long a request holds a resumable upload without renewing that, and how often it does. If its process is
# killed, others have to wait so long.
HOLD_SECONDS = 4.0
HOLD_RENEWAL_SECONDS = 1.0
# How long a request waits for one that holds the upload, and how often it looks. It outlasts the hold of a process
# that was killed.
HOLD_TIMEOUT_SECONDS = 6.0
HOLD_CHECK_SECONDS = 0.25
# A request that has looked within this time still waits.
WAITING_SECONDS = 2.0
# For so long an expired upload is answered with 410 ``upload_expired``; after that it is unknown.
KEEP_EXPIRED_UPLOADS = timedelta(days=1)
