-- Run by psql once, as the superuser of etc/compose.yaml's PostgreSQL, when that is made: the roles and the database of
-- docs/operations.rst, "Roles in a PostgreSQL of your own".
\getenv password DATABASE_PASSWORD
create role anon nologin noinherit;
create role authenticated nologin noinherit;
create role service_role nologin noinherit bypassrls;
create role project_service login noinherit nosuperuser nocreatedb nocreaterole nobypassrls noreplication
  password :'password';
grant anon, authenticated, service_role to project_service;
alter role project_service set log_min_error_statement = panic;
create database project owner project_service template template0 encoding 'UTF8';
