-- Users are read each time they are asked for, so nobody needs to hear of their changes. A process of the previous
-- version, which remembers users, reads them again after a second in any case.
drop trigger if exists user_changed on auth.users;
drop trigger if exists user_deleted on auth.users;
drop function if exists auth.tell_changed_user();
