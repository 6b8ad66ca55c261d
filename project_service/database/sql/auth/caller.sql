-- Who calls, for row-level security policies. The table API sets request.jwt.claims for its transaction.

create or replace function auth.jwt() returns jsonb
  language sql stable parallel safe
  return coalesce(nullif(current_setting('request.jwt.claims', true), ''), '{}')::jsonb;
comment on function auth.jwt() is 'The claims of the caller''s access token; an empty object without one.';

create or replace function auth.uid() returns uuid
  language sql stable parallel safe
  return case when auth.jwt() ->> 'sub' ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
              then (auth.jwt() ->> 'sub')::uuid end;
comment on function auth.uid() is 'The id of the signed-in user; null without one.';

create or replace function auth.role() returns text
  language sql stable parallel safe
  return coalesce(auth.jwt() ->> 'role', current_setting('role', true));
comment on function auth.role() is 'The role the caller acts in.';

create or replace function auth.email() returns text
  language sql stable parallel safe
  return auth.jwt() ->> 'email';
comment on function auth.email() is 'The email address of the signed-in user; null without one.';
