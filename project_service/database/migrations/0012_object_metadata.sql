-- What an object has beside its bytes. An overwrite by the service key alone keeps the owner, who could never write the
-- object again otherwise; an object may have an age for caches of its own; and the row says whether its date tells its
-- bytes apart from all others that its key ever had (RFC 9110 section 8.8.2.2).

alter table storage.objects
    add column max_age_seconds integer check (max_age_seconds >= 0),  -- null: as the service is configured
    -- The key had other bytes earlier in the second of updated_at.
    add column changed_twice boolean not null default false;
-- When an object of the slot was last deleted or moved away: its key may get other bytes in the same second.
alter table storage.usage add column removed_at timestamptz;
