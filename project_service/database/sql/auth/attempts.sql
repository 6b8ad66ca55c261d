-- Limits on guessing.

-- verdict: 'free' (reserved, mark names it), 'busy' (all that is left is reserved by attempts still running),
-- 'refused' (too many failures; wait_seconds until the oldest that counts leaves the window).
create or replace function auth.reserve_attempt(
    p_scope text, p_subject text, p_max integer, p_window interval, p_now timestamptz,
    out verdict text, out wait_seconds double precision, out mark timestamptz
) language plpgsql as $$
declare
    entry auth.throttle;
    -- An attempt takes seconds: one that is pending longer was abandoned, and counts.
    abandoned constant interval := '1 minute';
begin
    verdict := 'free';
    wait_seconds := 0;
    if p_max <= 0 then
        return;
    end if;
    loop
        insert into auth.throttle (scope, subject, expires_at)
            values (p_scope, p_subject, p_now + p_window + abandoned) on conflict do nothing;
        select * into entry from auth.throttle where scope = p_scope and subject = p_subject for update;
        -- The cleanup may have taken the row in between.
        exit when found;
    end loop;
    entry.failed := array(
        select t from unnest(
            entry.failed || array(select t from unnest(entry.pending) t where t <= p_now - abandoned)
        ) t where t > p_now - p_window order by t);
    entry.pending := array(select t from unnest(entry.pending) t where t > p_now - abandoned order by t);
    if cardinality(entry.failed) >= p_max then
        verdict := 'refused';
        wait_seconds := extract(epoch from
            entry.failed[cardinality(entry.failed) - p_max + 1] + p_window - p_now);
        return;
    end if;
    if cardinality(entry.failed) + cardinality(entry.pending) >= p_max then
        verdict := 'busy';
        return;
    end if;
    -- Marks in one row differ, so that each can be taken back by itself.
    mark := greatest(p_now, entry.pending[cardinality(entry.pending)] + interval '1 microsecond');
    update auth.throttle set
        failed = entry.failed, pending = entry.pending || mark, expires_at = p_now + p_window + abandoned
        where scope = p_scope and subject = p_subject;
end $$;

-- outcome: 'failed' (it counts), 'released' (it never was an attempt), 'cleared' (a success: earlier failures go too).
create or replace function auth.settle_attempt(p_scope text, p_subject text, p_mark timestamptz, p_outcome text)
returns void language sql as $$
    update auth.throttle set
        pending = array_remove(pending, p_mark),
        failed = case p_outcome when 'failed' then failed || p_mark when 'cleared' then '{}' else failed end
    where scope = p_scope and subject = p_subject and p_mark is not null;
$$;

-- Both of a login's counters, the account's always first, so that two logins never wait for each other in a ring.
create or replace function auth.reserve_login(
    p_email text, p_address text, p_max integer, p_max_address integer, p_window interval, p_now timestamptz,
    out verdict text, out wait_seconds double precision, out mark timestamptz, out address_mark timestamptz
) language plpgsql as $$
declare
    account record;
    place record;
begin
    select * into account from auth.reserve_attempt('login', p_email, p_max, p_window, p_now);
    verdict := account.verdict;
    wait_seconds := account.wait_seconds;
    mark := account.mark;
    if verdict <> 'free' then
        return;
    end if;
    select * into place from auth.reserve_attempt('login_address', p_address, p_max_address, p_window, p_now);
    verdict := place.verdict;
    wait_seconds := place.wait_seconds;
    address_mark := place.mark;
    if verdict <> 'free' then
        perform auth.settle_attempt('login', p_email, mark, 'released');
        mark := null;
    end if;
end $$;

revoke execute on function auth.reserve_attempt, auth.settle_attempt, auth.reserve_login from public;
