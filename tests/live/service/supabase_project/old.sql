--
-- PostgreSQL database dump
--

SET statement_timeout = 0;
SET lock_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA auth;
CREATE SCHEMA extensions;
CREATE SCHEMA storage;

CREATE EXTENSION IF NOT EXISTS citext WITH SCHEMA extensions;

CREATE TYPE public.mood AS ENUM (
    'good',
    'bad'
);

--
-- Name: uid(); Type: FUNCTION; Schema: auth
--

CREATE FUNCTION auth.uid() RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
  select nullif(current_setting('request.jwt.claim.sub', true), '')::uuid
$$;

CREATE FUNCTION extensions.uuid_generate_v4() RETURNS uuid
    LANGUAGE sql
    AS $$ select gen_random_uuid() $$;

CREATE FUNCTION storage.foldername(name text) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
begin
    return (string_to_array(name, '/'))[1:array_length(string_to_array(name, '/'), 1) - 1];
end
$$;

CREATE FUNCTION storage.update_updated_at_column() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    new.updated_at = now();
    return new;
end
$$;

SET default_tablespace = '';
SET default_table_access_method = heap;

--
-- Name: users; Type: TABLE; Schema: auth
--

CREATE TABLE auth.users (
    instance_id uuid,
    id uuid NOT NULL,
    aud character varying(255),
    role character varying(255),
    email character varying(255),
    encrypted_password character varying(255),
    email_confirmed_at timestamp with time zone,
    invited_at timestamp with time zone,
    confirmation_token character varying(255),
    last_sign_in_at timestamp with time zone,
    raw_app_meta_data jsonb,
    raw_user_meta_data jsonb,
    is_super_admin boolean,
    created_at timestamp with time zone,
    updated_at timestamp with time zone,
    phone text DEFAULT NULL::character varying,
    banned_until timestamp with time zone,
    deleted_at timestamp with time zone,
    is_anonymous boolean DEFAULT false NOT NULL
);

CREATE TABLE auth.identities (
    provider_id text NOT NULL,
    user_id uuid NOT NULL,
    identity_data jsonb NOT NULL,
    provider text NOT NULL,
    last_sign_in_at timestamp with time zone,
    created_at timestamp with time zone,
    updated_at timestamp with time zone,
    email text GENERATED ALWAYS AS (lower((identity_data ->> 'email'::text))) STORED,
    id uuid DEFAULT gen_random_uuid() NOT NULL
);

CREATE TABLE storage.buckets (
    id text NOT NULL,
    name text NOT NULL,
    owner uuid,
    created_at timestamp with time zone DEFAULT now(),
    updated_at timestamp with time zone DEFAULT now(),
    public boolean DEFAULT false,
    avif_autodetection boolean DEFAULT false,
    file_size_limit bigint,
    allowed_mime_types text[],
    owner_id text,
    type text DEFAULT 'STANDARD' NOT NULL
);

CREATE TABLE storage.objects (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    bucket_id text,
    name text,
    owner uuid,
    created_at timestamp with time zone DEFAULT now(),
    updated_at timestamp with time zone DEFAULT now(),
    last_accessed_at timestamp with time zone DEFAULT now(),
    metadata jsonb,
    path_tokens text[] GENERATED ALWAYS AS (string_to_array(name, '/'::text)) STORED,
    version text,
    owner_id text,
    user_metadata jsonb
);

--
-- Name: notes; Type: TABLE; Schema: public
--

CREATE TABLE public.profiles (
    id uuid NOT NULL,
    nick extensions.citext
);

CREATE TABLE public.notes (
    id uuid DEFAULT extensions.uuid_generate_v4() NOT NULL,
    author uuid DEFAULT auth.uid() NOT NULL,
    text text NOT NULL,
    mood public.mood
);

CREATE FUNCTION public.handle_new_user() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
  insert into public.profiles (id, nick) values (new.id, new.raw_user_meta_data ->> 'nick');
  return new;
end
$$;

--
-- Data for Name: users; Type: TABLE DATA; Schema: auth
--

COPY auth.users (instance_id, id, aud, role, email, encrypted_password, email_confirmed_at, invited_at, confirmation_token, last_sign_in_at, raw_app_meta_data, raw_user_meta_data, is_super_admin, created_at, updated_at, phone, banned_until, deleted_at, is_anonymous) FROM stdin;
00000000-0000-0000-0000-000000000000	11111111-1111-4111-8111-111111111111	authenticated	authenticated	ada@example.com	$2a$04$kZGytHxog5tsSyNiwUG6F.mfiq8hpmJLbrBV35O8b8l5Ro6oV/Vh2	2023-02-03 04:05:06.789+00	\N		2024-05-06 07:08:09+00	{"provider": "email", "providers": ["email", "google"], "role": "editor"}	{"nick": "Ada \\"the first\\"", "lines": "one\\ntwo"}	\N	2023-02-03 04:05:00+00	2024-05-06 07:08:09+00	\N	\N	\N	f
00000000-0000-0000-0000-000000000000	22222222-2222-4222-8222-222222222222	authenticated	authenticated	ben@example.com	$2a$04$kZGytHxog5tsSyNiwUG6F.mfiq8hpmJLbrBV35O8b8l5Ro6oV/Vh2	2023-03-03 04:05:06+00	\N		\N	{"provider": "email", "providers": ["email"]}	{}	\N	2023-03-03 04:05:00+00	2023-03-03 04:05:00+00	\N	2124-01-01 00:00:00+00	\N	f
00000000-0000-0000-0000-000000000000	33333333-3333-4333-8333-333333333333	authenticated	authenticated	\N		\N	\N		\N	{}	{}	\N	2023-04-03 04:05:00+00	2023-04-03 04:05:00+00	\N	\N	\N	t
00000000-0000-0000-0000-000000000000	44444444-4444-4444-8444-444444444444	authenticated	authenticated	\N		\N	\N		\N	{}	{}	\N	2023-05-03 04:05:00+00	2023-05-03 04:05:00+00	4912345	\N	\N	f
\.

COPY auth.identities (provider_id, user_id, identity_data, provider, last_sign_in_at, created_at, updated_at, id) FROM stdin;
11111111-1111-4111-8111-111111111111	11111111-1111-4111-8111-111111111111	{"sub": "11111111-1111-4111-8111-111111111111", "email": "ada@example.com"}	email	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	aaaaaaaa-1111-4111-8111-111111111111
100000000000000000001	11111111-1111-4111-8111-111111111111	{"sub": "100000000000000000001", "email": "ada@gmail.example"}	google	2024-05-06 07:08:09+00	2023-06-03 04:05:00+00	2023-06-03 04:05:00+00	aaaaaaaa-3333-4333-8333-333333333333
22222222-2222-4222-8222-222222222222	22222222-2222-4222-8222-222222222222	{"sub": "22222222-2222-4222-8222-222222222222", "email": "ben@example.com"}	email	2023-03-03 04:05:00+00	2023-03-03 04:05:00+00	2023-03-03 04:05:00+00	aaaaaaaa-2222-4222-8222-222222222222
\.

COPY public.profiles (id, nick) FROM stdin;
11111111-1111-4111-8111-111111111111	Ada "the first"
22222222-2222-4222-8222-222222222222	\N
\.

COPY public.notes (id, author, text, mood) FROM stdin;
99999999-1111-4111-8111-111111111111	11111111-1111-4111-8111-111111111111	Two\nlines	good
99999999-2222-4222-8222-222222222222	22222222-2222-4222-8222-222222222222	Ben's	\N
\.

COPY storage.buckets (id, name, owner, created_at, updated_at, public, avif_autodetection, file_size_limit, allowed_mime_types, owner_id, type) FROM stdin;
avatars	avatars	\N	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	t	f	1048576	{image/*,text/plain}	\N	STANDARD
My papers	My papers	11111111-1111-4111-8111-111111111111	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	f	f	\N	\N	11111111-1111-4111-8111-111111111111	STANDARD
\.

COPY storage.objects (id, bucket_id, name, owner, created_at, updated_at, last_accessed_at, metadata, version, owner_id, user_metadata) FROM stdin;
bbbbbbbb-1111-4111-8111-111111111111	avatars	ada.txt	11111111-1111-4111-8111-111111111111	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	{"eTag": "\\"e\\"", "size": 3, "mimetype": "text/plain", "cacheControl": "max-age=60"}	cccccccc-1111-4111-8111-111111111111	11111111-1111-4111-8111-111111111111	{"by": "Ada"}
bbbbbbbb-2222-4222-8222-222222222222	My papers	11111111-1111-4111-8111-111111111111/a & b?.txt	11111111-1111-4111-8111-111111111111	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	2023-02-03 04:05:00+00	{"eTag": "\\"e\\"", "size": 5, "mimetype": "text/markdown", "cacheControl": "no-cache"}	cccccccc-2222-4222-8222-222222222222	11111111-1111-4111-8111-111111111111	\N
\.

ALTER TABLE ONLY auth.identities
    ADD CONSTRAINT identities_pkey PRIMARY KEY (id);
ALTER TABLE ONLY auth.users
    ADD CONSTRAINT users_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.profiles
    ADD CONSTRAINT profiles_pkey PRIMARY KEY (id);
ALTER TABLE ONLY storage.buckets
    ADD CONSTRAINT buckets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY storage.objects
    ADD CONSTRAINT objects_pkey PRIMARY KEY (id);

CREATE TRIGGER on_auth_user_created AFTER INSERT ON auth.users FOR EACH ROW EXECUTE FUNCTION public.handle_new_user();
CREATE TRIGGER update_objects_updated_at BEFORE UPDATE ON storage.objects FOR EACH ROW EXECUTE FUNCTION storage.update_updated_at_column();

ALTER TABLE ONLY auth.identities
    ADD CONSTRAINT identities_user_id_fkey FOREIGN KEY (user_id) REFERENCES auth.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_author_fkey FOREIGN KEY (author) REFERENCES auth.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.profiles
    ADD CONSTRAINT profiles_id_fkey FOREIGN KEY (id) REFERENCES auth.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY storage.objects
    ADD CONSTRAINT "objects_bucketId_fkey" FOREIGN KEY (bucket_id) REFERENCES storage.buckets(id);

CREATE POLICY "Own notes" ON public.notes USING ((( SELECT auth.uid() AS uid) = author));
CREATE POLICY "Everybody reads profiles" ON public.profiles FOR SELECT USING (true);
ALTER TABLE public.notes ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.profiles ENABLE ROW LEVEL SECURITY;
ALTER TABLE storage.objects ENABLE ROW LEVEL SECURITY;
CREATE POLICY "Own folder" ON storage.objects TO authenticated USING (((bucket_id = 'My papers'::text) AND ((storage.foldername(name))[1] = (auth.uid())::text))) WITH CHECK ((bucket_id = 'My papers'::text));
CREATE POLICY "Own buckets" ON storage.buckets FOR SELECT TO authenticated USING ((owner = auth.uid()));

CREATE PUBLICATION supabase_realtime WITH (publish = 'insert, update, delete, truncate');
ALTER PUBLICATION supabase_realtime ADD TABLE ONLY public.notes;

GRANT USAGE ON SCHEMA public TO anon;
GRANT USAGE ON SCHEMA public TO authenticated;
GRANT ALL ON FUNCTION public.handle_new_user() TO anon;
GRANT ALL ON FUNCTION public.handle_new_user() TO authenticated;
GRANT ALL ON TABLE public.notes TO anon;
GRANT ALL ON TABLE public.notes TO authenticated;
GRANT ALL ON TABLE public.notes TO service_role;
GRANT ALL ON TABLE public.profiles TO anon;
GRANT ALL ON TABLE public.profiles TO authenticated;
GRANT ALL ON TABLE public.profiles TO service_role;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO anon;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO authenticated;

--
-- PostgreSQL database dump complete
--
