-- When a link was last used, so that a download that broke off can be continued without a use of its own.
alter table storage.links add column used_at timestamptz;
