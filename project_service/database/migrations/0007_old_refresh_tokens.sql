-- A session that goes on for years left a row with each refresh. A token is forgotten when it would have expired even
-- unused: what is no longer a token is no sign of theft.
alter table auth.refresh_tokens add column issued_at timestamptz not null default now();
create index refresh_tokens_by_issue on auth.refresh_tokens (issued_at);
