-- What clients of the Supabase family see of buckets and objects.

-- Anybody may download everything in it, without policies being asked (the column of that name in Supabase).
alter table storage.buckets add column public boolean not null default false;
-- Null as long as its rules have not changed.
alter table storage.buckets add column updated_at timestamptz;
-- The version with which the object came, which stays when it is replaced or moved; null as long as that is its version.
alter table storage.objects add column id uuid;
