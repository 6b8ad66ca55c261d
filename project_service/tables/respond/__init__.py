"""From what PostgreSQL answered to status, headers and body."""
