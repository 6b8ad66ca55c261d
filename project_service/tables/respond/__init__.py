"""Makes the response, status, headers and body, of what PostgreSQL returned."""
