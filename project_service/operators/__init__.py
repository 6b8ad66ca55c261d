"""What operators ask of the service as a whole: endpoints below ``/admin``, for the service key alone."""
