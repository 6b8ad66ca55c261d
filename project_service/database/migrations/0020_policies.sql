-- Buckets in which row-level security on storage.objects decides.

alter table storage.buckets add column policies boolean not null default false;
-- With a role the link opens only what policies let these claims see.
alter table storage.links add column role text, add column claims text;

-- Other roles that were granted rights keep them.
do $$
declare
    grantee name;
begin
    for grantee in
        select distinct r.rolname
        from pg_class c cross join aclexplode(c.relacl) acl join pg_roles r on r.oid = acl.grantee
        where c.oid = 'storage.objects'::regclass and r.oid <> c.relowner and not r.rolbypassrls
            and r.rolname not in ('anon', 'authenticated')
    loop
        execute format('create policy %I on storage.objects to %I using (true)', 'all for ' || grantee, grantee);
    end loop;
end
$$;
